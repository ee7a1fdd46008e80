"""Compute-heavy operators run twice after a plan without them: within the bounds on time, and where they pay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echo.errors import BudgetError
from echo.ir.ops import spec
from echo.ir.schedule import RecomputeSchedule
from echo.passes import select as select_pass
from echo.passes.analysis import FindCandidates, Partition
from echo.passes.request import Request
from echo.passes.rules import Rules
from echo.passes.select import Select, Selection
from echo.plans.options import Options
from echo.policies.problem import Problem
from echo.policies.search import deepened
from echo.policies.solvers.ruin_recreate import RuinRecreate
from tests.passes.test_select import heavy, seconds
from tests.support.cases import Case, any_case
from tests.support.fake_frontend import FakeFramework
from tests.support.planning import costs_of, problem_of

MODELS = [("nmt_large", 0.1), ("lm", 0.3), ("dropout", 0.3)]


def request_of(case: Case, **options: Any) -> Request:
    return Request(case.graph, Options.of(**options), FakeFramework(case.training, evaluations=600))


def run(case: Case, request: Request) -> Selection:
    candidates = FindCandidates().run(request, case.training)
    segments = Partition().run(case.training, candidates)
    return Select().run(request, case.training, candidates, segments, costs_of(case.training))


def both(name: str, stock_seconds: float | None = None, **options: Any) -> tuple[Case, Selection, Selection]:
    """The plan of light operators, and the one that starts from it."""
    case = any_case(name)
    request = replace(request_of(case, **options), fused=stock_seconds is not None,
                      stock_seconds=lambda: stock_seconds)  # fmt: skip
    light = run(case, request)
    return case, light, run(case, replace(request, light=light.schedule))


@pytest.mark.parametrize(("name", "bound"), MODELS)
def test_deeper_plan_runs_heavy_operators_twice_within_the_bound(name: str, bound: float) -> None:
    case, light, deeper = both(name, max_overhead=bound)
    assert not heavy(case, light)
    assert heavy(case, deeper)
    assert deeper.planned_bytes < light.planned_bytes
    assert seconds(case, deeper) <= bound * costs_of(case.training).step_seconds
    assert deeper.warm_start is not None
    assert deeper.warm_start.heavy


def test_bound_is_a_part_of_the_original_step() -> None:
    own = costs_of(any_case("lm").training).step_seconds
    case, _, deeper = both("lm", stock_seconds=3 * own, max_overhead=0.2)
    assert 0.2 * own < seconds(case, deeper) <= 0.6 * own
    assert deeper.warm_start is not None
    assert deeper.warm_start.step_ratio == pytest.approx(3)


def test_heavy_operators_that_do_not_pay_stay_stashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select_pass, "RULES", Rules(heavy=1e6))
    case, light, deeper = both("lm", max_overhead=0.5)
    assert deeper.schedule == light.schedule
    assert not heavy(case, deeper)


@pytest.mark.parametrize(("price", "starts"), [(0.0, 1), (1e6, 2)])
def test_search_also_starts_where_heavy_operators_cost_the_least_while_none_pays(
    monkeypatch: pytest.MonkeyPatch, price: float, starts: int
) -> None:
    seen: list[tuple[RecomputeSchedule, ...]] = []
    find = RuinRecreate.choose

    def choose(solver: RuinRecreate, problem: Problem) -> RecomputeSchedule:
        seen.append(solver.starts)
        return find(solver, problem)

    monkeypatch.setattr(select_pass, "RULES", Rules(heavy=price))
    monkeypatch.setattr(RuinRecreate, "choose", choose)
    case, light, _ = both("lm", max_overhead=0.5)
    assert len(seen[-1]) == starts
    assert (seen[-1][0] == light.schedule) == (starts == 2)
    assert any(spec(case.training.nodes[node].op).cost.heavy for node in seen[-1][-1])


def test_never_heavy_holds_within_a_budget_too() -> None:
    case = any_case("dropout")
    light = run(case, request_of(case, max_overhead=None))
    budget = int(0.98 * light.planned_bytes)
    assert heavy(case, run(case, request_of(case, memory_budget=budget)))
    with pytest.raises(BudgetError):
        run(case, request_of(case, memory_budget=budget, heavy="never"))


def test_follower_takes_the_heavy_choice_of_its_leader() -> None:
    case, *leaders = both("lm", max_overhead=0.3)
    followers = []
    for leader in leaders:
        assert leader.warm_start is not None
        request = replace(request_of(case, max_overhead=0.3), warm_start=leader.warm_start.by_roles(), follows=True)
        followers.append(run(case, request))
    assert [bool(heavy(case, follower)) for follower in followers] == [False, True]
    assert followers[1].planned_bytes < followers[0].planned_bytes


def test_light_nodes_that_are_no_candidates_any_more_are_left_out() -> None:
    case = any_case("nmt")
    problem = problem_of(case.training, max_seconds=0.3 * costs_of(case.training).step_seconds)
    whole = deepened(problem, {})
    fewer = {node: entries for node, entries in problem.candidates.items() if node != next(iter(whole))}
    assert set(deepened(replace(problem, candidates=fewer), whole)) <= set(fewer)


def test_late_search_leaves_the_light_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    case = any_case("nmt")
    request = request_of(case, max_overhead=0.3)
    light = run(case, request)

    def late(request: Request, problem: Problem) -> Selection:
        return select_pass._selection(problem, {})  # as a search that ends before it began

    monkeypatch.setattr(select_pass, "_solve", late)
    assert run(case, replace(request, light=light.schedule)).schedule == light.schedule


@pytest.mark.parametrize("rounds", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_light_operators_that_would_move_others_are_left_out(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to copies of heavy operators, where alone they move none; in the end nothing is recomputed."""
    case = any_case("nmt")
    request = request_of(case, max_overhead=1.0)
    light = run(case, request)
    refused: list[frozenset[int]] = []

    def moved(training: Any, device: str, recompute: Any, schedule: Any) -> frozenset[int]:
        if len(refused) == rounds:
            return frozenset()
        refused.append(frozenset(sorted(light.schedule)[:3]))
        return refused[-1]

    monkeypatch.setattr(select_pass, "moved", moved)
    deep = run(case, replace(request, light=light.schedule))
    assert refused
    assert deep.schedule == light.schedule or not refused[-1] & set(deep.schedule)
