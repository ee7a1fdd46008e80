"""Compute-heavy operators that run twice by default, and the bound on the time of a whole step."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo import pipeline
from echo.errors import BudgetError, TimeLimitError
from echo.estimators.cost_model import CostModel
from echo.frontend.framework import MxnetFramework
from echo.frontend.symbols import graph_of, infer_binding
from echo.ir.op_spec import PLAN_ATTRIBUTE
from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph
from echo.passes import choose
from echo.passes.patterns.apply import Fused
from echo.passes.request import Request
from echo.passes.variant import Variant
from echo.pipeline import BASES, PIPELINE, REFINEMENTS
from echo.plans.decisions import STASH
from echo.plans.options import Options
from echo.policies import search
from echo.runtime.applied import BoundLeader
from tests.support.cases import model_case
from tests.support.fake_frontend import FakeFramework
from tests.support.planning import costs_of

MODEL = SMALL["lm"]()
pytestmark = pytest.mark.usefixtures("nothing_remembered", "cheap_planning")
UNFUSED: dict[str, Any] = {"fuse": False, "max_overhead": 0.3}


@pytest.fixture(autouse=True)
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    time_all(monkeypatch, 1e-3)


def time_all(monkeypatch: pytest.MonkeyPatch, second: float, measured: bool = True) -> None:
    """Every operator takes so long, as if that were measured."""

    def costs(self: MxnetFramework, training: TrainingGraph, *_: float) -> CostModel:
        found = costs_of(training, second)
        return found if measured else replace(found, measured=0, estimated=len(training.nodes))

    monkeypatch.setattr(MxnetFramework, "costs", costs)


def counted_in_the_note(found: echo.Plan) -> int:
    (note,) = (note.text for note in found.notes if "compute-heavy" in note.text)
    return int(note.split()[0])


def chain(layers: int = 12) -> mx.sym.Symbol:
    """Products between which there is little that is light."""
    y = mx.sym.var("data")
    for index in range(layers):
        y = mx.sym.tanh(mx.sym.FullyConnected(y, num_hidden=16, name=f"fc{index}"))
    return mx.sym.LinearRegressionOutput(y, mx.sym.var("label"), name="out")


def plan(**options: Any) -> echo.Plan:
    return echo.plan(chain(), data=(4096, 16), **options)


def plan_lm(**options: Any) -> echo.Plan:
    return echo.plan(MODEL.symbol, **options, **MODEL.shapes)


def heavy(found: echo.Plan) -> int:
    return sum(spec(mark.op).cost.heavy and PLAN_ATTRIBUTE in mark.attrs for mark in found.marks)


def test_heavy_operators_run_twice_and_a_note_says_what_that_saves() -> None:
    light, deeper = plan(heavy="never", **UNFUSED), plan(**UNFUSED)
    assert heavy(light) == 0
    assert heavy(deeper) > 0
    assert deeper.after.total < light.after.total
    assert deeper.overhead <= 0.3
    (note,) = [note.text for note in deeper.notes if "compute-heavy" in note.text]
    assert re.match(rf"{heavy(deeper)} compute-heavy operators recomputed, in \d+ runs, which saves .* for ", note)


@pytest.mark.parametrize(
    ("options", "second", "measured", "same_bits"),
    [
        pytest.param({"policy": "echo"}, 1e-3, True, True, id="the paper's policy"),
        pytest.param({"max_overhead": None}, 1e-3, True, True, id="no bound"),
        pytest.param({}, 1e-7, True, True, id="a step that is too short to be timed"),
        pytest.param({}, 1e-3, False, True, id="nothing measured"),
        pytest.param({}, 1e-3, True, False, id="a GPU that chooses algorithms"),
    ],
)
def test_heavy_operators_stay_stashed(
    options: dict[str, Any], second: float, measured: bool, same_bits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_all(monkeypatch, second, measured)
    monkeypatch.setattr(MxnetFramework, "repeats_bits", property(lambda _: same_bits))
    assert heavy(plan(**{**UNFUSED, **options})) == 0


def test_further_shapes_of_a_model_do_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    symbol = chain()
    first = echo.plan(symbol, data=(4096, 16), **UNFUSED)
    time_all(monkeypatch, 1e-3, measured=False)  # as where a warm start leaves out measuring
    second, light = (echo.plan(symbol, data=(6000, 16), **UNFUSED, heavy=heavy) for heavy in ("auto", "never"))
    assert heavy(second) >= heavy(first) > 0
    assert second.after.total < light.after.total
    assert second.overhead <= 0.3


def test_search_that_fails_leaves_the_light_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("surprise")

    light = plan(heavy="never", **UNFUSED)
    monkeypatch.setattr(search, "deepened", fails)
    found = plan(**UNFUSED)
    assert found.after == light.after
    assert any("surprise" in note.text for note in found.failed)


def test_no_time_left_leaves_the_light_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    light, best_plan = plan(heavy="never", **UNFUSED), choose.best_plan
    monkeypatch.setattr(choose, "best_plan", lambda *given: best_plan(*given)._replace(other_seconds=math.inf))
    found = plan(**UNFUSED)
    assert found.after == light.after
    assert heavy(found) == 0
    assert found.is_late


def test_searches_that_end_late_leave_time_for_heavy_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    in_time = plan(**UNFUSED)
    monkeypatch.setattr(Request, "is_late", property(lambda _: True))
    assert plan(**UNFUSED).after == in_time.after
    assert heavy(in_time) > 0


def test_bound_on_the_step_is_kept_and_buys_memory() -> None:
    found = {bound: plan(max_time=bound) for bound in (1.0, 1.1, 1.3)}
    assert all(each.time_ratio <= bound * (1 + 1e-9) for bound, each in found.items())
    totals = [each.after.total for each in found.values()]
    assert totals == sorted(set(totals), reverse=True)
    assert plan_lm(max_time=0.6).time_ratio <= 0.6


def test_both_bounds_hold() -> None:
    found = plan(max_time=1.4, max_overhead=0.05)
    assert found.overhead <= 0.05
    assert found.time_ratio <= 1.4
    assert plan_lm(max_time=1.0, memory_budget=0.9).time_ratio <= 1.0
    with pytest.raises(BudgetError, match=r"cannot be met within max_time=1: the least that can be reached") as caught:
        plan(max_time=1.0, memory_budget=0.9)
    assert caught.value.reachable > caught.value.budget


def test_bound_that_cannot_be_met_names_the_fastest_plan() -> None:
    with pytest.raises(TimeLimitError, match=r"max_time of 0.01 cannot be met: the least .* is 0\.\d+ times") as caught:
        plan_lm(max_time=0.01)
    error = caught.value
    assert 0.01 < error.reachable < 1
    assert plan_lm(max_time=error.reachable).after.total <= error.bytes
    with pytest.raises(TimeLimitError, match=r"is 1\.00 times a step of the original graph"):
        plan(max_time=0.5, fuse=False)


def test_fastest_plan_may_need_recomputation_for_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused graph that is faster, and larger as it is, counts as far as recomputation makes it small enough."""
    monkeypatch.setattr(Variant, "is_larger", property(lambda self: bool(self.fused.match_sites) and not made))
    made: list[Options] = []
    plan_variant = choose.plan_variant

    def planned(request: Request, *given: Any) -> Variant:
        if request.options.memory_budget is not None:
            made.append(request.options)
        return plan_variant(request, *given)

    monkeypatch.setattr(choose, "plan_variant", planned)
    with pytest.raises(TimeLimitError) as caught:
        plan_lm(max_time=0.01)
    (options,) = made
    assert options.max_time is None
    assert caught.value.reachable < 1
    assert caught.value.bytes <= options.memory_budget


def test_heavy_operators_that_the_user_insists_on_do_not_count_in_the_note() -> None:
    found = plan(recompute=["fc3", "fc7"], **UNFUSED)
    assert {f"fc{index}" for index in (3, 7)} <= {each.name.partition(":")[0] for each in found.recomputed}
    assert counted_in_the_note(found) == heavy(found) - 2 > 0


def test_bound_on_the_step_where_nothing_was_measured_is_none_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    time_all(monkeypatch, 1e-3, measured=False)
    found = plan(max_time=0.01)
    assert heavy(found) == 0
    assert any("max_time is no bound here, the default max_overhead is" in note.text for note in found.notes)


@pytest.mark.parametrize(
    ("total", "part", "taken"),
    [
        pytest.param(80, 0.19, True, id="smaller and in time"),
        pytest.param(100, 0.0, False, id="as large"),
        pytest.param(80, 0.21, False, id="beyond the bound on a step"),
    ],
)
def test_smaller_plan_within_the_bound_is_taken(
    total: int, part: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = model_case("lm")
    request = Request(case.graph, Options.of(max_time=1.2), FakeFramework(case.training))

    def variant(total: int, part: float) -> Variant:
        """A plan whose recomputation takes this part of a step."""
        plan = SimpleNamespace(after=SimpleNamespace(total=total), step_seconds=1.0, overhead_seconds=part)
        planned: Any = SimpleNamespace(plan=plan, timed=True, other_seconds=0.0, schedule={}, analysis=(request,))
        return Variant(Fused(case.graph), None, planned)

    light, deeper = variant(100, 0.1), variant(total, part)
    monkeypatch.setattr(Variant, "why_light", lambda *_: "")
    monkeypatch.setattr(Variant, "deeper_than", lambda found, _: found)
    monkeypatch.setattr(Variant, "with_reason", lambda found, _: found)
    monkeypatch.setattr(choose, "best_plan", lambda *_: deeper.planned)
    found = choose._deepened(request, choose.Stages(BASES, PIPELINE, REFINEMENTS), light)
    assert found.plan is (deeper if taken else light).plan


@pytest.mark.parametrize(
    ("options", "step", "measured", "why"),
    [
        ({"policy": "echo"}, 1e-3, True, "this policy runs none twice without a budget"),
        ({}, 1e-3, False, "none runs twice where seconds are not measured"),
        ({"max_overhead": None}, 1e-3, True, "none runs twice without a bound on time"),
        ({}, 1e-7, True, "none runs twice in so short a step"),
        ({"max_overhead": 0.001}, 1e-3, True, "running it twice does not pay"),
        ({"heavy": "never"}, 1e-3, True, "heavy='never' runs none twice"),
        ({"memory_budget": 0.99}, 1e-3, True, "running it twice does not pay"),
    ],
)
def test_plan_says_why_heavy_operators_stay_stashed(
    options: dict[str, Any], step: float, measured: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_all(monkeypatch, step, measured)
    y = mx.sym.var("data")
    for index in range(12):  # gradients read the products
        y = mx.sym.square(mx.sym.FullyConnected(y, num_hidden=16, name=f"fc{index}"))
    found = echo.plan(mx.sym.MakeLoss(mx.sym.sum(y)), data=(4096, 16), fuse=False, **options)
    reasons = {each.reason for each in found.decisions if each.action == STASH and spec(each.op).cost.heavy}
    assert {reason.partition(" is compute-heavy: ")[2] for reason in reasons} == {why}


def test_leader_whose_plan_came_from_the_disk_offers_its_heavy_operators() -> None:
    """Its marks tell what the search knew of it."""
    symbol, options = chain(), Options(**UNFUSED)
    binding = infer_binding(symbol, {"data": (4096, 16)})
    framework = MxnetFramework(graph_of(symbol), binding, mx.cpu())
    made = pipeline.plan(Request(graph_of(symbol), options, framework, details=False))
    assert heavy(made.plan)
    assert made.warm_start is not None
    leader = BoundLeader(made.base, made.graph, binding, mx.cpu())
    assert leader.warm_start(options) == made.warm_start.by_roles()
    assert leader.warm_start(options).heavy


@pytest.mark.parametrize(("bound", "count"), [(1.0, 1), (0.02, 2)])
def test_large_graph_gets_a_second_budget_if_the_first_takes_too_long(
    bound: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_LARGE": 1, "_NODES_OF_BUDGETS": 1, "_LOWEST_OF_LARGE": 0.2}.items():
        monkeypatch.setattr(search, name, value)
    budgets: list[int] = []
    run = search.KeepSearch.run
    monkeypatch.setattr(search.KeepSearch, "run", lambda self, budget: (budgets.append(budget), run(self, budget))[1])
    found = plan(fuse=False, max_overhead=bound)
    assert len(budgets) == count
    assert budgets == sorted(budgets)
    assert heavy(found) or count == 2
