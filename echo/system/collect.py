"""Python's search for garbage, switched off where it only costs time."""

from __future__ import annotations

import contextlib
import gc
from typing import Iterator


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Planning makes many small objects and no cycles; looking for cycles among them takes a fifth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
