"""Variables that MXNet reads from the environment at each bind, changed for a while.

Threads share the environment, so one of them at a time changes it.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

from echo.system.threads import Lock

_lock = Lock()
_changed: list[tuple[str, str | None]] = []  # a variable and its value before, while a thread has changed it


@contextlib.contextmanager
def changed_variable(name: str, value: str) -> Iterator[None]:
    """While this is open, an environment variable has this value; other threads that would change one wait."""
    with _lock.held():
        before = os.environ.get(name)
        _changed.append((name, before))
        os.environ[name] = value
        try:
            yield
        finally:
            _restore(name, before)
            _changed.pop()


def _restore(name: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before


def _restore_in_child() -> None:
    """The thread that changed the environment and would change it back may not be there."""
    for name, before in reversed(_changed):
        _restore(name, before)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)
