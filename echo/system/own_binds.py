"""Binds that echo itself makes while it plans: transparent mode leaves them alone."""

from __future__ import annotations

import contextlib
import threading
from typing import Iterator

_thread = threading.local()


@contextlib.contextmanager
def own_binds() -> Iterator[None]:
    """Marks the binds that this thread makes while this is open as echo's own."""
    before, _thread.own = are_own(), True
    try:
        yield
    finally:
        _thread.own = before


def are_own() -> bool:
    """Whether `own_binds` is open in this thread."""
    return getattr(_thread, "own", False)
