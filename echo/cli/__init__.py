"""The command line, ``mxecho``."""
