"""A clock that a test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Callable


def fake_time(now: Callable[[], float]) -> SimpleNamespace:
    """In the place of the module ``time``; ``now`` gives its seconds."""
    return SimpleNamespace(perf_counter=now)
