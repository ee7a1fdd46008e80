"""The process that echo runs in: locks, files, deadlines, the status line. No module here knows what a graph is."""
