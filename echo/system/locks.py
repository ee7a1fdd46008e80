"""Locks that a forked child finds free, whatever another thread of its parent was doing."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Iterator

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """A reentrant lock. `os.fork` leaves the child a new one.

    A thread that holds the lock while it forks goes on in the child, and releases the lock that it had taken.
    """

    def __init__(self) -> None:
        self._inner = threading.RLock()
        _locks.add(self)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock while this is open."""
        with self._inner:
            yield

    def renew(self) -> None:
        """Forgets who holds the lock: called in a forked child, where the other threads are gone."""
        self._inner = threading.RLock()


def _renew_all() -> None:
    for lock in _locks:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
