"""Binds that echo itself makes while it plans: transparent mode leaves them alone."""

from __future__ import annotations

import contextlib
from typing import Iterator

from echo.system.per_thread import PerThread

_OWN = PerThread(False)


@contextlib.contextmanager
def own_binds() -> Iterator[None]:
    """Marks the binds that this thread makes while this is open as echo's own."""
    with _OWN.set_to(True):
        yield


def are_own() -> bool:
    """Whether `own_binds` is open in this thread."""
    return _OWN.value
