"""Seconds of one run of a graph, without what the host does around it.

On a CPU that is little. A GPU works off what it was given while the host goes on: there runs are given to it one behind
the other, and the host waits for the last. Waiting varies by some 10 microseconds, a thousandth of such a batch.
"""

from __future__ import annotations

import time
from typing import Callable

_GPU = 2  # MXNet's number for the type of device
_BATCH_SECONDS = 10e-3
_MOST_RUNS = 100


def seconds_of(run: Callable[[int], None], device: tuple[int, int]) -> float:
    """Seconds of one run; ``run`` runs a graph so many times and waits for the last."""
    alone = _timed(run, 1)
    runs = min(_MOST_RUNS, int(_BATCH_SECONDS / max(alone, 1e-9))) if device[0] == _GPU else 1
    return _timed(run, runs) / runs if runs > 1 else alone


def _timed(run: Callable[[int], None], times: int) -> float:
    start = time.perf_counter()
    run(times)
    return time.perf_counter() - start
