"""State for threads and forked children: locks, values of one thread, and messages that are logged once."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Generic, Iterator, TypeVar

# Locks that a forked child finds free, whatever another thread of its parent was doing.

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


# Work that no fork of another thread may fall into.

_forks = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forks.acquire, after_in_parent=_forks.release, after_in_child=_forks.release)


@contextlib.contextmanager
def without_forks() -> Iterator[None]:
    """While this is open, ``os.fork`` waits in every other thread, and so does whoever else would open it.

    A fork stops the threads of MXNet's engine and starts them again. Where another thread gives it work in between, as
    each bind and the end of each array do, MXNet waits for ever, in the parent or in the child.
    """
    with _forks:
        yield


# Values that hold for one thread, and for as long as a ``with`` is open.

T = TypeVar("T")


class PerThread(Generic[T]):
    """A value that a thread sets for a while; outside of `set_to` it is ``default``, in every thread."""

    def __init__(self, default: T) -> None:
        self._default = default
        self._thread = threading.local()

    @property
    def value(self) -> T:
        """The value in the calling thread."""
        value: T = getattr(self._thread, "value", self._default)
        return value

    @contextlib.contextmanager
    def set_to(self, value: T) -> Iterator[None]:
        """Sets the value of the calling thread while this is open. Such contexts nest."""
        before, self._thread.value = self.value, value
        try:
            yield
        finally:
            self._thread.value = before


# Messages that are logged once a process: twenty buckets that fail alike cost one line in the log.


class Once:
    """Remembers texts, so that each is said once. Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._said: set[str] = set()

    def first(self, text: str) -> bool:
        """Returns whether this is the first call with this text."""
        with self._lock.held():
            is_new = text not in self._said
            self._said.add(text)
        return is_new

    def forget(self) -> None:
        """Forgets all texts: each is new again."""
        with self._lock.held():
            self._said.clear()


ONCE = Once()  # of the process


# Binds that echo itself makes while it plans: transparent mode leaves them alone.

_OWN = PerThread(False)


@contextlib.contextmanager
def own_binds() -> Iterator[None]:
    """Marks the binds that this thread makes while this is open as echo's own."""
    with _OWN.set_to(True):
        yield


def are_own() -> bool:
    """Whether `own_binds` is open in this thread."""
    return _OWN.value
