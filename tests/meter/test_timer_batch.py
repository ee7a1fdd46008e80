"""A run on a GPU is timed among many. Time is made here: giving work takes none, waiting takes what the work does."""

from __future__ import annotations

import os
import threading
from typing import Callable, Sequence

import pytest

from echo.meter import timer
from echo.meter.timer import Moment, Sample, in_turns, sample, shortest, work_since
from tests.meter.fake_time import fake_time

CPU, GPU = (1, 0), (2, 1)
WAIT = 1e-4  # seconds of waiting, however much there is to do


class Device:
    def __init__(self, seconds: float) -> None:
        self.now, self.seconds, self.runs = 0.0, seconds, list[int]()

    def run(self, times: int) -> None:
        self.runs.append(times)
        self.now += times * self.seconds + WAIT


def made(seconds: float, monkeypatch: pytest.MonkeyPatch, share: float = 1.0, finely: bool = True) -> Device:
    device = Device(seconds)
    monkeypatch.setattr(timer, "time", fake_time(lambda: device.now, lambda: share * device.now))
    monkeypatch.setattr(timer, "_counts_finely", lambda: finely)
    return device


def seconds_of(run: Callable[[int], None], device: tuple[int, int]) -> float:
    return sample(run, device).seconds


@pytest.mark.parametrize(("seconds", "runs"), [(9e-4, 10), (1e-7, 99), (4.9e-3, 2)])
def test_batch_on_a_gpu_takes_long_enough(seconds: float, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = made(seconds, monkeypatch)
    assert seconds_of(device.run, GPU) == pytest.approx(seconds + WAIT / runs)
    assert device.runs == [1, runs]


def test_long_run_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = made(6e-3, monkeypatch)
    assert seconds_of(device.run, GPU) == pytest.approx(6e-3 + WAIT)
    assert device.runs == [1]


def test_runs_on_a_cpu_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    device = made(1e-6, monkeypatch)
    assert seconds_of(device.run, CPU) == pytest.approx(1e-6 + WAIT)
    assert device.runs == [1]


@pytest.mark.parametrize(
    ("share", "finely", "counted"),
    [
        (0.4, True, 0.4),  # others had the processor meanwhile
        (1.9, True, 1.0),  # the clock ran slower
        (0.4, False, 1.0),
    ],
)
def test_processor_time_of_other_processes_does_not_count(
    share: float, finely: bool, counted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = made(6e-3, monkeypatch, share, finely)
    assert seconds_of(device.run, CPU) == pytest.approx(counted * (6e-3 + WAIT))


def test_waiting_for_a_gpu_counts_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    device = made(6e-3, monkeypatch, 0.1)
    assert seconds_of(device.run, GPU) == pytest.approx(6e-3 + WAIT)


@pytest.mark.parametrize(("tick", "finely"), [(1e-5, True), (4e-3, False)])
def test_coarse_processor_clock_is_found(tick: float, finely: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1000))
    monkeypatch.setattr(timer, "time", fake_time(lambda: 0.0, lambda: next(calls) // 5 * tick))
    timer._counts_finely.cache_clear()
    assert timer._counts_finely() is finely
    timer._counts_finely.cache_clear()


class Threads:
    """A main thread and others, each with the seconds that the processor spends on it in a run of a second."""

    def __init__(self, main: float, *others: float, clock: float = 1.0, interrupted: Sequence[int] = (0,)) -> None:
        self.seconds = {os.getpid(): main, **{10_000_000 + at: each for at, each in enumerate(others)}}
        self.clock, self.now, self.runs, self.interrupted = clock, 0.0, 0, interrupted

    def run(self, times: int) -> None:
        self.now += times * self.clock
        self.runs += times

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> Threads:
        spent = {thread: each for thread, each in self.seconds.items()}
        monkeypatch.setattr(timer, "time", fake_time(lambda: self.now))
        monkeypatch.setattr(timer, "_of_threads", lambda: {key: self.runs * each for key, each in spent.items()})
        monkeypatch.setattr(timer, "_interruptions", lambda: sum(self.interrupted[: self.runs]))
        monkeypatch.setattr(timer, "_counts_finely", lambda: True)
        return self


@pytest.mark.parametrize(
    ("threads", "seconds"),
    [
        (Threads(0.01, 0.9, clock=3.0), 0.91),  # others had the processor for two seconds
        (Threads(0.01, 0.9, 0.8, clock=3.0), 0.91),  # of two threads the one that computes more
        (Threads(0.1, 0.95, clock=1.0), 1.0),  # the main thread gave out work meanwhile
    ],
)
def test_a_run_takes_what_the_busiest_thread_computes(
    threads: Threads, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads.patch(monkeypatch)
    assert seconds_of(threads.run, CPU) == pytest.approx(seconds)
    start = timer.now()
    threads.run(1)
    assert work_since(start, CPU) == pytest.approx(seconds)
    assert work_since(start, GPU) == pytest.approx(threads.clock)


@pytest.mark.parametrize(
    ("threads", "disturbed"),
    [
        (Threads(0.0, 0.9, 0.8, interrupted=(1,)), True),
        (Threads(0.0, 0.9, 0.8), False),
        (Threads(0.0, 0.9, 0.01, interrupted=(1,)), False),  # one computes: its own seconds are not longer for it
    ],
)
def test_an_interruption_disturbs_threads_that_wait_for_each_other(
    threads: Threads, disturbed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads.patch(monkeypatch)
    assert sample(threads.run, CPU).disturbed is disturbed


def test_a_thread_that_began_meanwhile_counts_from_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "now", lambda: Moment(5.0, {os.getpid(): 1.0, 10_000_000: 0.5}))
    assert work_since(Moment(0.0, {os.getpid(): 0.75}), CPU) == 0.75


def test_rounds_go_on_while_every_run_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = Threads(0.0, 0.9, 0.9, interrupted=(0, 1, 1)).patch(monkeypatch)
    before: list[int] = []
    assert in_turns([calm.run], CPU, 2, lambda: before.append(1)) == [Sample(0.9, False)]
    assert (calm.runs, len(before)) == (2, 2)
    busy = Threads(0.0, 0.9, 0.9, interrupted=(1, 1, 0, 0)).patch(monkeypatch)
    assert in_turns([busy.run], CPU, 2, lambda: None) == [Sample(pytest.approx(0.9), False)]
    assert busy.runs == 3
    hopeless = Threads(0.0, 0.9, 0.9, interrupted=(1,) * 9).patch(monkeypatch)
    assert in_turns([hopeless.run], CPU, 2, lambda: None)[0].disturbed
    assert hopeless.runs == 4


def test_graphs_run_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, order = Threads(0.0, 0.9).patch(monkeypatch), list[str]()

    def run(name: str) -> Callable[[int], None]:
        return lambda times: (order.append(name), threads.run(times))[0]

    in_turns([run("whole"), run("overhead")], CPU, 2, lambda: None)
    assert order == ["whole", "overhead", "whole", "overhead"]


def test_the_shortest_is_disturbed_only_if_all_are() -> None:
    assert shortest([Sample(2.0), Sample(1.0, True)]) == (1.0, False)
    assert shortest([Sample(2.0, True), Sample(1.0, True)]) == (1.0, True)


def test_the_processor_counts_each_thread_of_this_process() -> None:
    before, stop = timer._of_threads(), threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    after = timer._of_threads()
    stop.set()
    thread.join()
    assert set(after) - set(before) == {thread.native_id}
    assert after[os.getpid()] >= before[os.getpid()] > 0
