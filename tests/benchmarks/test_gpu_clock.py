"""The seconds of a step, on a clock that the test sets."""

from __future__ import annotations

from typing import Iterator

import pytest

from benchmarks.gpu_clock import Clock


class Time:
    """A clock that stands still but for what is added to it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("seconds", "fit"), [(0, 0), (1, 1), (4.9, 2), (5.9, 2), (6, 3), (100, 10)])
def test_items_that_fit(seconds: float, fit: int) -> None:
    """Each takes two seconds; one is begun where as long a one would be done in time, but the first always."""
    time = Time()
    time.now = 50.0
    clock, taken = Clock(seconds, time), []
    for item in clock.take(range(10), lambda item: f"item {item}"):
        taken.append(item)
        time.now += 2
    assert taken == list(range(fit))
    assert clock.left_out == [f"item {item}" for item in range(fit, 10)]


def test_the_longest_item_counts() -> None:
    time = Time()
    clock, taken = Clock(10, time), []
    for length in clock.take([1, 5, 1, 1, 1]):
        taken.append(length)
        time.now += length
    assert taken == [1, 5]
    assert clock.left_out == ["1", "1", "1"]


def test_seconds_begin_with_the_first_question() -> None:
    time = Time()
    clock = Clock(3, time)
    time.now = 1000.0

    def items() -> Iterator[int]:
        yield from range(2)

    for _ in clock.take(items()):
        time.now += 1
    assert clock.left_out == []
