"""Seconds of one run of a graph, without what the host does around it.

On a CPU that is little; but other programs take their turns on it, and the seconds of the clock then say more of them
than of the graph. Those that the processor spent on this process are no fewer than a run alone takes, however many
threads there are: the fewer of both count. A GPU works off what it was given while the host goes on: there runs are
given to it one behind the other, and the host waits for the last. Waiting varies by some 10 microseconds, a thousandth
of such a batch.
"""

from __future__ import annotations

import functools
import time
from typing import Callable

_GPU = 2  # MXNet's number for the type of device
_BATCH_SECONDS = 10e-3
_MOST_RUNS = 100
_MOST_LOOKS = 1_000_000  # some tenths of a second
_TICK = 1e-3  # seconds; systems that count the time of processes in ticks have some of 1 to 10 ms


def seconds_of(run: Callable[[int], None], device: tuple[int, int]) -> float:
    """Returns the seconds of one run of a graph; ``run(count)`` runs it ``count`` times and waits for the last."""
    if device[0] != _GPU:
        return min(_timed(run, 1))
    alone = _timed(run, 1)[0]
    runs = min(_MOST_RUNS, int(_BATCH_SECONDS / max(alone, 1e-9)))
    return _timed(run, runs)[0] / runs if runs > 1 else alone


def _timed(run: Callable[[int], None], times: int) -> tuple[float, float]:
    """Seconds by the clock, and those of the processor; the former again where the system counts these in ticks."""
    start, spent = time.perf_counter(), time.process_time()
    run(times)
    seconds, of_processor = time.perf_counter() - start, time.process_time() - spent
    return seconds, of_processor if _counts_finely() else seconds


@functools.lru_cache(maxsize=None)
def _counts_finely() -> bool:
    start = time.process_time()
    steps = (now - start for now in (time.process_time() for _ in range(_MOST_LOOKS)) if now != start)
    return next(steps, _TICK) < _TICK
