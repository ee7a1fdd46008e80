"""What a process logs of its plans: the first at once, all at its end."""

from __future__ import annotations

import atexit
import logging
from typing import Any

import pytest

from echo.plans.plan import Plan
from echo.plans.summary import Summary
from tests.plans.test_plan import plan


@pytest.fixture
def at_the_end(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is called when the process ends."""
    found: list[Any] = []
    monkeypatch.setattr(atexit, "register", found.append)
    return found


def sized(planned: int, **changes: Any) -> Plan:
    before = plan().before
    return plan(before=type(before)(planned, before.live_peak, {}, {}, {}), **changes)


def test_the_first_plan_is_told_and_the_others_counted(at_the_end: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    summary = Summary()
    with caplog.at_level(logging.DEBUG, "echo"):
        for planned, changes in ((200, {}), (400, {"applied": "none", "reason": "too small"}), (300, {})):
            summary.add(sized(planned << 20, **changes))
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG", "DEBUG"]
    assert "200 MB -> 120 MB planned" in caplog.messages[0]
    assert str(summary) == "3 graphs bound, 1 of them as they were; the largest: " + caplog.messages[1][len("echo: ") :]
    assert "too small: the user's own graph is bound as it is" in str(summary)
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
