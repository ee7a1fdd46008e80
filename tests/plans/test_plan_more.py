"""The time of a step before and after, as a ratio and in words."""

from __future__ import annotations

import atexit
import logging
from typing import Any

import pytest

from echo.plans.plan import Plan, StepTime, Summary
from tests.plans.test_plan import plan


@pytest.mark.parametrize(
    ("before", "after", "ratio", "change"),
    [
        (0.2, 0.06, 0.3, "-70.0 %"),
        (0.2, 0.2, 1.0, "+0.0 %"),
        (0.05, 0.1, 2.0, "+100.0 %"),
        (0.0, 0.0, 1.0, "+0.0 %"),  # nothing was measured
    ],
)
def test_ratio_and_change(before: float, after: float, ratio: float, change: str) -> None:
    time = StepTime(before, after)
    assert time.ratio == pytest.approx(ratio)
    assert time.change == change


@pytest.fixture
def at_the_end(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is called when the process ends."""
    found: list[Any] = []
    monkeypatch.setattr(atexit, "register", found.append)
    return found


def sized(planned: int, **changes: Any) -> Plan:
    before = plan().before
    return plan(before=type(before)(planned, before.live_peak, {}, {}, {}), **changes)


def test_first_and_much_larger_plans_are_told_and_all_are_counted(
    at_the_end: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    summary = Summary()
    with caplog.at_level(logging.DEBUG, "echo"):
        for planned, changes in ((200, {}), (399, {"applied": "none", "reason": "too small"}), (20, {}), (300, {})):
            summary.add(sized(planned * 10**6, **changes))
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG", "DEBUG", "DEBUG"]
    assert "200 MB -> 120 MB planned" in caplog.messages[0]
    assert str(summary) == "4 graphs bound, 1 of them unchanged; the largest: " + caplog.messages[1][len("echo: ") :]
    assert "too small: the original graph is bound as it is" in str(summary)
    caplog.clear()
    (last,) = at_the_end
    with caplog.at_level(logging.INFO, "echo"):
        last()
    assert caplog.messages == [f"echo: {summary}"]


def test_one_plan_is_told_once(at_the_end: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    summary = Summary()
    with caplog.at_level(logging.INFO, "echo"):
        summary.add(plan())
        at_the_end[0]()
    assert len(caplog.messages) == 1


def test_last_line_is_of_a_graph_at_least_half_as_large_as_the_largest(
    at_the_end: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    summary = Summary()
    with caplog.at_level(logging.INFO, "echo"):
        for planned in (11, 15, 30, 29, 31, 800, 801, 1599):
            summary.add(sized(planned * 10**6))
    assert [line.split(" -> ")[0] for line in caplog.messages] == ["echo: 11.0 MB", "echo: 30.0 MB", "echo: 800 MB"]
    assert "the largest: 1,599 MB" in str(summary)
