"""Memory that planning has freed goes back to the system, where the C library would keep it for later."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Gives back what is free at the end of the heap and in its middle; with a C library other than glibc, nothing."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(ctypes.c_size_t(0))
