"""A run on a GPU is timed among many. Time is made here: giving work takes none, waiting takes what the work does."""

from __future__ import annotations

import pytest

from echo.meter import batch
from echo.meter.batch import seconds_of
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
    monkeypatch.setattr(batch, "time", fake_time(lambda: device.now, lambda: share * device.now))
    monkeypatch.setattr(batch, "_counts_finely", lambda: finely)
    return device


@pytest.mark.parametrize(("seconds", "runs"), [(9e-4, 10), (1e-7, 99), (4.9e-3, 2)])
def test_on_a_gpu_a_batch_takes_long_enough(seconds: float, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = made(seconds, monkeypatch)
    assert seconds_of(device.run, GPU) == pytest.approx(seconds + WAIT / runs)
    assert device.runs == [1, runs]


def test_what_takes_long_by_itself_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = made(6e-3, monkeypatch)
    assert seconds_of(device.run, GPU) == pytest.approx(6e-3 + WAIT)
    assert device.runs == [1]


def test_on_a_cpu_runs_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    device = made(1e-6, monkeypatch)
    assert seconds_of(device.run, CPU) == pytest.approx(1e-6 + WAIT)
    assert device.runs == [1]


@pytest.mark.parametrize(
    ("share", "finely", "counted"),
    [
        (0.4, True, 0.4),  # others had the processor meanwhile
        (1.9, True, 1.0),  # two threads
        (0.4, False, 1.0),
    ],
)
def test_what_others_take_of_the_processor_does_not_count(
    share: float, finely: bool, counted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = made(6e-3, monkeypatch, share, finely)
    assert seconds_of(device.run, CPU) == pytest.approx(counted * (6e-3 + WAIT))


def test_on_a_gpu_the_processor_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    device = made(6e-3, monkeypatch, 0.1)
    assert seconds_of(device.run, GPU) == pytest.approx(6e-3 + WAIT)


@pytest.mark.parametrize(("tick", "finely"), [(1e-5, True), (4e-3, False)])
def test_ticks(tick: float, finely: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1000))
    monkeypatch.setattr(batch, "time", fake_time(lambda: 0.0, lambda: next(calls) // 5 * tick))
    batch._counts_finely.cache_clear()
    assert batch._counts_finely() is finely
    batch._counts_finely.cache_clear()
