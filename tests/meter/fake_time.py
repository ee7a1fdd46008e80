"""Clocks that a test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Callable


def fake_time(now: Callable[[], float], spent: Callable[[], float] | None = None) -> SimpleNamespace:
    """Replaces the module ``time``; ``now`` gives seconds, ``spent`` those of the processor (None: as many)."""
    return SimpleNamespace(perf_counter=now, process_time=spent or now)
