"""Measuring in a process of its own: MXNet's C interface and the standard library, nothing else is imported."""
