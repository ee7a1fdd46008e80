"""Seconds of one run of a graph, without what the host and other programs do around it.

On a CPU the host does little; but other programs take their turns on it, and the seconds of the clock then count them,
too. Those that the processor spends on the threads of this process do not: on the one that computes, or on that of
several which computes the most, after the main thread has given it its work. The fewer of both count. A GPU works off
what it was given while the host goes on: there runs are given to it one after the other, and the host waits for the
last. Waiting varies by some 10 microseconds, a thousandth of such a batch.
"""

from __future__ import annotations

import functools
import os
import resource
import time
from typing import Callable, NamedTuple, Sequence

Run = Callable[[int], None]  # runs a graph so many times, and waits for the last

_GPU = 2  # MXNet's number for the type of device
_BATCH_SECONDS = 10e-3
_MOST_RUNS = 100
_MOST_LOOKS = 1_000_000  # some tenths of a second
_TICK = 1e-3  # seconds; systems that count the time of processes in ticks have some of 1 to 10 ms
_SEVERAL = 0.2  # of what the thread that computes the most does: other threads compute, too
_MORE_ROUNDS = 1  # times as many rounds again, for runs that were interrupted all the time


class Moment(NamedTuple):
    """Seconds by the clock, and those that the processor has spent on each thread of this process."""

    clock: float
    threads: dict[int, float]


class Sample(NamedTuple):
    """Seconds of a run; ``disturbed`` says that other programs took the processor from one of several threads.

    The others then waited for it, and may have spent the time of the processor on that.
    """

    seconds: float
    disturbed: bool = False


def shortest(samples: Sequence[Sample]) -> Sample:
    """Returns the fewest seconds of some samples, which count as disturbed if each of them was."""
    return Sample(min(sample.seconds for sample in samples), all(sample.disturbed for sample in samples))


def sample(run: Run, device: tuple[int, int]) -> Sample:
    """Returns the seconds of one run of a graph."""
    if device[0] != _GPU:
        return _on_the_processor(run)
    alone = _timed(run, 1)
    runs = min(_MOST_RUNS, int(_BATCH_SECONDS / max(alone, 1e-9)))
    return Sample(_timed(run, runs) / runs if runs > 1 else alone)


def in_turns(runs: Sequence[Run], device: tuple[int, int], rounds: int, before: Callable[[], None]) -> list[Sample]:
    """Returns the shortest sample of each graph; they run in turns, so that what disturbs one disturbs all.

    ``before`` is called before each run. There are so many rounds, and more while a graph has no undisturbed sample.
    """
    samples: list[list[Sample]] = [[] for _ in runs]
    for turn in range(rounds * (1 + _MORE_ROUNDS)):
        if turn >= rounds and not any(shortest(found).disturbed for found in samples):
            break
        for run, found in zip(runs, samples):
            before()
            found.append(sample(run, device))
    return [shortest(found) for found in samples]


def now() -> Moment:
    """Returns the seconds until now."""
    return Moment(time.perf_counter(), _of_threads())


def work_since(start: Moment, device: tuple[int, int]) -> float:
    """Returns the seconds of work since a moment: other programs do not make them more, a GPU works by the clock."""
    end = now()
    clock = end.clock - start.clock
    return clock if device[0] == _GPU else min(clock, sum(_main_and_most(start, end)))


def _on_the_processor(run: Run) -> Sample:
    interrupted, before = _interruptions(), _of_threads()
    clock = _timed(run, 1)
    start, end = Moment(0.0, before), Moment(clock, _of_threads())
    is_interrupted = _interruptions() > interrupted
    if not _counts_finely():
        return Sample(clock, is_interrupted)
    main, most = _main_and_most(start, end)
    several = sum(_others(start, end)) > most * (1 + _SEVERAL)
    return Sample(min(clock, main + most), is_interrupted and several)


def _others(start: Moment, end: Moment) -> list[float]:
    """Returns the seconds of all threads but the main one."""
    return [now - start.threads.get(thread, 0.0) for thread, now in end.threads.items() if thread != os.getpid()]


def _main_and_most(start: Moment, end: Moment) -> tuple[float, float]:
    """Returns the seconds of the main thread, and those of the other thread that computed the most."""
    main = end.threads.get(os.getpid(), 0.0) - start.threads.get(os.getpid(), 0.0)
    return main, max(_others(start, end), default=0.0)


def _timed(run: Run, times: int) -> float:
    """Returns the seconds by the clock."""
    start = time.perf_counter()
    run(times)
    return time.perf_counter() - start


def _of_threads() -> dict[int, float]:
    """Returns the seconds that the processor spent on each thread, by its number; of all in one where that is unknown.

    Linux makes the number of a thread's clock from that of the thread: clock_getcpuclockid(3).
    """
    try:
        return {thread: time.clock_gettime(~thread << 3 | 6) for thread in map(int, os.listdir("/proc/self/task"))}
    except (AttributeError, OSError):  # not Linux, or a thread that has just ended
        return {0: time.process_time()}


def _interruptions() -> int:
    """Returns how often a thread of this process had to leave a processor to another program."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@functools.lru_cache(maxsize=None)
def _counts_finely() -> bool:
    start = time.process_time()
    steps = (tick - start for tick in (time.process_time() for _ in range(_MOST_LOOKS)) if tick != start)
    return next(steps, _TICK) < _TICK
