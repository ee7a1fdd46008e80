"""Functions and MXNet's classes in whose place echo puts its own, and the policy of transparent mode."""

from __future__ import annotations

import weakref
from typing import Any, Callable

from echo.runtime.error_policy import ErrorPolicy
from echo.system.threads import Lock


class Patches:
    """Replaces MXNet's attributes; what a stand-in stands for is its ``__wrapped__``. Thread-safe.

    ``policy`` is the one with which every CachedOp, and every symbol that is bound, is planned; None where transparent
    mode is off. Stand-ins ask for it, since one that other people have wrapped cannot be taken out any more.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.policy: ErrorPolicy | None = None
        # by identity: functools.wraps copies every mark onto other people's wrappers
        self._ours: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
        self._for_good: set[str] = set()

    def switch(self, policy: ErrorPolicy | None) -> ErrorPolicy | None:
        """Changes the policy; the one from before."""
        with self.lock.held():
            before, self.policy = self.policy, policy
        return before

    def put(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Puts ``make(current)`` instead of the current attribute, unless that is a stand-in already."""
        with self.lock.held():
            current = getattr(owner, name)
            if current not in self._ours:
                stand_in = make(current)
                self._ours.add(stand_in)
                setattr(owner, name, stand_in)

    def put_for_good(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Puts ``make(current)`` instead of the current attribute, once: it is never taken out."""
        with self.lock.held():
            if name not in self._for_good:
                self._for_good.add(name)
                setattr(owner, name, make(getattr(owner, name)))

    def take_out(self, owner: Any, name: str) -> None:
        """Puts back what a stand-in stands for; nothing where another thing is in its place."""
        with self.lock.held():
            current = getattr(owner, name)
            if current in self._ours:
                setattr(owner, name, current.__wrapped__)
                self._ours.discard(current)


PATCHES = Patches()  # of the process
