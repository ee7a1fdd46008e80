"""The match range of MXNet's memory planner, which it reads from the environment at each bind."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

from echo.system.locks import Lock

MATCH_RANGE_VARIABLE = "NNVM_EXEC_MATCH_RANGE"
_environment_lock = Lock()
_changed: list[str | None] = []  # what the environment held before, while a thread has changed it


@contextlib.contextmanager
def match_range(value: int | None) -> Iterator[None]:
    """Binds made while this is open use this match range of MXNet's memory planner (None: leave it as it is)."""
    if value is None:
        yield
        return
    with _environment_lock.held():
        before = os.environ.get(MATCH_RANGE_VARIABLE)
        _changed.append(before)
        os.environ[MATCH_RANGE_VARIABLE] = str(value)
        try:
            yield
        finally:
            _restore(before)
            _changed.pop()


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(MATCH_RANGE_VARIABLE, None)
    else:
        os.environ[MATCH_RANGE_VARIABLE] = before


def _restore_in_child() -> None:
    """The thread that changed the environment and would change it back may not be there."""
    if _changed:
        _restore(_changed[0])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)


def default_match_range() -> int:
    """The match range that MXNet would use by itself."""
    text = os.environ.get(MATCH_RANGE_VARIABLE, "16")
    return int(text) if text.isdigit() else 16
