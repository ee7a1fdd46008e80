"""The curve of memory and time, of recomputation alone: with fused operators there is less to choose from."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import echo
from benchmarks.models import SMALL
from echo.errors import BudgetError
from echo.frontend.framework import MxnetFramework
from echo.ir.schedule import RecomputeSchedule
from echo.plans.frontier import Frontier, frontier
from echo.plans.plan import Plan
from echo.policies.problem import Problem
from echo.policies.search import Search
from tests.plans.test_plan import plan

MODEL = SMALL["nmt"]()
pytestmark = pytest.mark.usefixtures("cheap_planning")


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ECHO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return echo.frontier(MODEL.symbol, budgets=5, fuse=False, max_planning=None, **MODEL.shapes)


@pytest.mark.slow
def test_plans_with_less_memory_take_more_time(curve: Any) -> None:
    totals = [plan.after.total for plan in curve.plans]
    seconds = [plan.overhead_seconds for plan in curve.plans]
    assert len(totals) >= 3
    assert totals == sorted(set(totals))
    assert seconds == sorted(set(seconds), reverse=True)
    assert totals[0] < 0.8 * curve.plans[0].before.total
    assert totals[-1] <= curve.plans[0].before.total


@pytest.mark.slow
def test_the_fastest_within_a_budget(curve: Any) -> None:
    second = curve.plans[1]
    assert curve.within(second.after.total) is second
    assert curve.within(second.after.total + 1) is second
    assert curve.within(second.after.total - 1) is curve.plans[0]
    with pytest.raises(echo.BudgetError, match=f"least that can be reached is {curve.plans[0].after.total:,} bytes"):
        curve.within(curve.plans[0].after.total - 1)


@pytest.mark.parametrize("budget", [170 * 10**6, np.int64(170 * 10**6), "170MB", "50%", 0.5, np.float32(0.5)])
def test_budget_of_a_curve_is_given_as_the_option(budget: int | float | str) -> None:
    small, fast = plan(), replace(plan(), after=plan().before, overhead_seconds=0.0)
    curve = Frontier((small, fast), (small.after.total, fast.after.total))
    assert curve.within(budget) is small
    assert curve.within("100%") is fast


@pytest.mark.parametrize("budget", [0, -1, "6XB", None, float("nan")])
def test_budget_of_a_curve_that_makes_no_sense_raises_option_error(budget: Any) -> None:
    with pytest.raises(echo.OptionError, match="memory_budget: expected whole bytes, a size such as '6GB'"):
        Frontier((plan(),), (1,)).within(budget)


@pytest.mark.slow
def test_plan_with_more_room_is_never_slower(curve: Any) -> None:
    for small, large in zip(curve.plans, curve.plans[1:]):
        assert curve.within(large.after.total - 1) is small
        plan = echo.plan(MODEL.symbol, memory_budget=large.after.total, max_overhead=None, fuse=False, **MODEL.shapes)
        assert small.overhead > plan.overhead


def test_the_graph_is_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its training graph and its operators' times do not depend on budgets, nor does a frontier measure them apart."""
    asked = []
    for name in ("_differentiated", "cost_table"):
        full = getattr(MxnetFramework, name)
        monkeypatch.setattr(MxnetFramework, name, lambda self, name=name, full=full: asked.append(name) or full(self))
    echo.frontier(MODEL.symbol, budgets=3, fuse=False, **MODEL.shapes)
    assert sorted(asked) == ["_differentiated", "cost_table"]


def test_budget_out_of_reach_starts_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    full = Search.choose

    def choose(self: Search, problem: Problem) -> RecomputeSchedule:
        asked.append(problem.max_bytes)
        return full(self, problem)

    monkeypatch.setattr(Search, "choose", choose)
    with pytest.raises(echo.BudgetError):
        echo.plan(MODEL.symbol, memory_budget=2, fuse=False, **MODEL.shapes)
    assert asked[:2] == [None, None]  # for what the error says of the least that can be reached, and for less than that
    assert None not in asked[2:]
    assert 2 not in asked


@pytest.mark.slow
def test_curve_prints_and_is_json(curve: Any) -> None:
    assert len(json.loads(json.dumps(curve.to_json()))) == len(curve.plans)
    assert f"{curve.plans[0].after.total / 10**6:.1f}" in str(curve)
    assert "Other budgets led to one of these plans" in str(curve)


@pytest.mark.parametrize("budgets", [1, 0, -3, 101, 2.5, "ten", True])
def test_numbers_of_points_that_make_no_sense(budgets: Any) -> None:
    with pytest.raises(echo.OptionError, match="budgets: expected a number from 2 to 100, got"):
        echo.frontier(MODEL.symbol, budgets=budgets, **MODEL.shapes)


@pytest.mark.parametrize("option", ["memory_budget", "max_overhead"])
def test_budgets_and_bounds_are_refused(option: str) -> None:
    with pytest.raises(echo.OptionError, match=f"{option}: a frontier covers all"):
        echo.frontier(MODEL.symbol, **{option: 0.5}, **MODEL.shapes)


@pytest.mark.slow
def test_states_of_the_optimizer_count_in_a_budget() -> None:
    plain = echo.plan(MODEL.symbol, **MODEL.shapes)
    weights = plain.before.static["weights"]
    plan = echo.plan(MODEL.symbol, optimizer_states=2, **MODEL.shapes)
    assert plan.before.static["optimizer states"] == 2 * weights
    assert plan.after.total == plain.after.total + 2 * weights
    least = echo.frontier(MODEL.symbol, budgets=2, **MODEL.shapes).plans[0].after.total
    assert echo.plan(MODEL.symbol, memory_budget=least, **MODEL.shapes).after.total <= least
    with pytest.raises(echo.BudgetError, match="optimizer states"):
        echo.plan(MODEL.symbol, memory_budget=least, optimizer_states=2, **MODEL.shapes)


@pytest.mark.parametrize("states", [-1, 17, 1.5, "two", True])
def test_states_that_make_no_sense(states: Any) -> None:
    with pytest.raises(echo.OptionError, match="optimizer_states: expected a number from 0 to 16, got"):
        echo.plan(MODEL.symbol, optimizer_states=states, **MODEL.shapes)


def test_budgets_that_are_missed_are_left_out() -> None:
    """A search that is cut off may miss a budget above the least."""
    full = echo.plan(MODEL.symbol, policy="none", fuse=False, **MODEL.shapes)

    def planned(budget: int) -> Plan:
        most = full.before.total
        if budget < most // 2 or most * 0.6 < budget < most * 0.8:
            raise BudgetError(budget, most // 2 - 100, "weights")
        return replace(full, after=replace(full.before, planned=full.before.planned - (most - min(budget, most))),
                       overhead_seconds=1.0 - budget / most)  # fmt: skip

    plans = frontier(planned, 6).plans
    assert plans[0].after.total >= full.before.total // 2
    assert not [each for each in plans if 0.6 < each.after.total / full.before.total < 0.8]
    assert len(plans) >= 3


def test_a_plan_of_unknown_time_is_compared_by_what_the_others_know() -> None:
    """Where the machine is busy, a plan with other operators may not be measured; it is faster, and stays."""
    smallest = plan(stock_seconds=1.0, step_seconds=0.8, overhead_seconds=0.1)
    larger = replace(smallest.after, planned=smallest.after.planned + 10**6)
    unknown = replace(smallest, after=larger, stock_seconds=None, step_seconds=0.5, overhead_seconds=0.0)
    curve = frontier(lambda budget: smallest if budget < larger.total else unknown, 3)
    assert [row["time"] for row in curve.to_json()] == [pytest.approx(0.9), 0.5]


def test_plans_without_the_time_of_the_original_step_are_compared_by_their_own() -> None:
    """Each is a multiple of its own fused step: in these multiples, the fast one would be the slow one."""
    small = plan(stock_seconds=None, step_seconds=6e-3, overhead_seconds=3e-4, fused=(("lstm_cell", ("a",)),))
    fast = replace(small, after=replace(small.after, planned=small.after.planned + 10**6), step_seconds=2e-3,
                   overhead_seconds=2e-4)  # fmt: skip
    curve = frontier(lambda budget: small if budget < fast.after.total else fast, 3)
    assert curve.plans == (small, fast)
    assert [row["time"] for row in curve.to_json()] == [pytest.approx(6.3 / 2.2), 1.0]
    assert [row["seconds"] for row in curve.to_json()] == [pytest.approx(6.3e-3), pytest.approx(2.2e-3)]
    assert "The time of a step without echo is not known" in str(curve)
    assert "unknown" in str(curve)


def test_not_even_the_original_graphs_bytes_are_met() -> None:
    def planned(budget: int) -> Plan:
        raise BudgetError(budget, 1000, "weights")

    with pytest.raises(BudgetError):
        frontier(planned, 3)
