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


def made(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device(seconds)
    monkeypatch.setattr(batch, "time", fake_time(lambda: device.now))
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
