"""The deadline of planning. Its clock is made here: no test waits."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest

import echo
from echo import pipeline
from echo.errors import BudgetError, OptionError
from echo.planning.planner import Planner
from echo.plans.decisions import Note, NoteKind
from echo.plans.options import Options
from echo.plans.variables import options_from
from echo.runtime import bind_plan
from echo.system import process as module
from echo.system.process import NEVER, Deadline

SHAPES = {"data": (64, 32)}
pytestmark = pytest.mark.usefixtures("measures")  # which look at the clock, too


class Clock:
    """Every look at it takes ``step`` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: float) -> None:
        ticks = itertools.count()
        monkeypatch.setattr(module.time, "monotonic", lambda: step * next(ticks))


def chain(length: int = 12) -> mx.sym.Symbol:
    y = mx.sym.var("data")
    for index in range(length):
        y = mx.sym.tanh(mx.sym.sin(mx.sym.FullyConnected(y, num_hidden=32, name=f"fc{index}")))
    return mx.sym.LinearRegressionOutput(y, mx.sym.var("label"), name="out")


def test_deadline_leaves_time_for_later_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)
    until = Deadline.after(9)
    assert (until.left, until.is_over) == (9, False)
    assert Deadline.after(None) is NEVER
    assert (NEVER.left, NEVER.is_over, NEVER.with_room()) == (math.inf, False, NEVER)
    monkeypatch.setattr(module.time, "monotonic", lambda: 102.0)
    assert until.with_room().left == 5  # two seconds are over, as many are left for later work
    assert until.with_room([(90.0, 101.5)]).left == 6.5  # one and a half of them were for what is done once
    monkeypatch.setattr(module.time, "monotonic", lambda: 108.0)
    assert until.with_room().left == 0  # of nine seconds three
    assert until.left == 1
    assert (until.rest().at, until.rest().length, until.seconds) == (until.at, 1, 9)
    assert (until.rest(0.25).at, until.rest(0.25).length) == (until.at - 0.25, 0.75)
    assert until.rest(5.0).length == 0
    assert NEVER.rest() == NEVER.rest(1.0) == NEVER


def planned(monkeypatch: pytest.MonkeyPatch, step: float, **options: Any) -> echo.Plan:
    with monkeypatch.context() as patch:
        Clock(patch, step)
        return echo.plan(chain(), max_overhead=None, fuse=False, **options, **SHAPES)


def test_stopped_planning_takes_the_best_found_so_far(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = planned(monkeypatch, 0.0)
    assert not whole.failed
    found = []
    for step in (0.001, 0.03, 0.1, 0.3, 1.0, 20.0):
        monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / str(step)))  # a plan that was stopped is a warm start
        monkeypatch.setattr(bind_plan, "PLANNER", Planner())
        plan = planned(monkeypatch, step, max_planning=10.0)
        assert whole.after.planned <= plan.after.planned <= plan.before.planned
        found.append((plan.after.planned, bool(plan.failed)))
    assert found[0] == (whole.after.planned, False)
    assert found[-1] == (whole.before.planned, True)
    assert any(late and whole.before.planned > size for size, late in found)
    assert all(late or size == whole.after.planned for size, late in found)


def test_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, 20.0, max_planning=7)
    assert any("max_planning=7 s" in note.text for note in plan.failed)
    assert "max_planning=7 s" in str(plan)


def test_plan_that_was_stopped_is_the_warm_start_of_the_next_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    stopped = planned(monkeypatch, 0.3, max_planning=6)
    assert stopped.is_late
    (path,) = tmp_path.rglob("plans/*")
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    warm_starts: list[Any] = []
    full = pipeline.plan
    monkeypatch.setattr(pipeline, "plan", lambda request: (warm_starts.append(request.warm_start), full(request))[1])
    finished = planned(monkeypatch, 0.0, max_planning=6)
    assert len(warm_starts) == 1
    assert warm_starts[0] is not None
    assert not finished.is_late
    assert finished.after.planned <= stopped.after.planned
    assert list(tmp_path.rglob("plans/*")) == [path]
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    again = planned(monkeypatch, 0.0, max_planning=6)
    assert (again.marks, again.after) == (finished.marks, finished.after)
    assert len(warm_starts) == 1, "a plan that was finished is read"


def test_better_plan_of_two_that_were_stopped_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    stopped = planned(monkeypatch, 0.3, max_planning=6)
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    assert planned(monkeypatch, 20.0, max_planning=6).after.planned <= stopped.after.planned


def test_stopped_plan_that_another_start_does_not_improve_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    full, searches = pipeline.plan, []

    def stopped(request: Any) -> Any:
        result = full(request)
        searches.append((result.plan.after.planned, request.deadline.left))
        late = Note("planning stopped", NoteKind.LATE)
        return result._replace(plan=replace(result.plan, notes=(*result.plan.notes, late)))

    monkeypatch.setattr(pipeline, "plan", stopped)
    found = []
    for _ in range(4):
        monkeypatch.setattr(bind_plan, "PLANNER", Planner())  # as in a new process
        found.append(planned(monkeypatch, 0.0, max_planning=9))
    assert [plan.is_late for plan in found] == [True, False, False, False]
    (size, _), _ = searches
    assert searches == [(size, 9), (size, 3)], "the second start continues for a third of the time"
    assert {plan.after.planned for plan in found} == {size}
    assert all("planning stopped" in str(plan) for plan in found)


def test_budgets_say_that_time_was_short(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = planned(monkeypatch, 0.0, policy="none")
    held = stock.before.total
    with pytest.raises(BudgetError, match="within max_planning=10 s"):
        planned(monkeypatch, 20.0, memory_budget=int(0.9 * held), max_planning=10)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "fast", True])
def test_bad_values(value: Any) -> None:
    with pytest.raises(OptionError, match="max_planning: expected seconds above 0, or None"):
        Options(max_planning=value)


def test_the_variable() -> None:
    assert options_from({"ECHO_MAX_PLANNING": "2.5"}).max_planning == 2.5
    assert options_from({"ECHO_MAX_PLANNING": "none"}).max_planning is None
    with pytest.raises(OptionError, match="ECHO_MAX_PLANNING"):
        options_from({"ECHO_MAX_PLANNING": "soon"})
