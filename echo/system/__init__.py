"""Facilities of the process that echo runs in: locks, files, deadlines, the status line; none is about graphs."""
