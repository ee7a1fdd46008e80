"""The choice between graphs: fused operators or none, masks as bits, layouts; what fails costs that way alone."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

import mxnet as mx
import pytest
from mxnet.symbol import Symbol

import echo
from benchmarks.models import SMALL
from echo import pipeline
from echo.errors import BudgetError
from echo.ir.graph import PREFIX, Entry, Graph, Node
from echo.passes import choose, variant
from echo.passes.pass_manager import Pass
from echo.passes.patterns import MASKS
from echo.passes.patterns.apply import Fused
from echo.passes.patterns.batched_products import is_layout
from echo.passes.patterns.single_operators import DROPOUT
from echo.passes.refinements import Masked
from echo.passes.request import Request, Unreached
from echo.passes.rules import Rules
from echo.passes.variant import PlanResult
from echo.pipeline import BASES
from echo.planning.planner import Planner
from echo.plans.options import Options
from echo.policies.problem import run_with_deadline
from echo.runtime import bind_plan
from echo.system.process import Deadline
from tests.runtime.test_fallbacks import SHAPES, Surprise, model
from tests.runtime.test_masks import bits_of
from tests.support.fused_models import EXAMPLES, decoder

MODEL = SMALL["nmt"]()
pytestmark = pytest.mark.usefixtures("nothing_remembered", "cheap_planning")


def plan(**options: Any) -> echo.Plan:
    return echo.plan(MODEL.symbol, **options, **MODEL.shapes)


def fields(found: echo.Plan) -> dict[str, Any]:
    return {field.name: getattr(found, field.name) for field in dataclasses.fields(found) if field.init}


def is_fused(request: Request) -> bool:
    return any(node.op.startswith(PREFIX) for node in request.graph.nodes)


def test_wishes_that_fused_operators_cannot_meet_cost_these_alone() -> None:
    """No fault of echo, not even to whoever is strict. Fused attention with Dropout reads sizes off its inputs."""
    x = mx.sym.InstanceNorm(mx.sym.var("x"), mx.sym.var("gamma"), mx.sym.var("beta"))
    weights = mx.sym.Dropout(mx.sym.softmax(mx.sym.batch_dot(x, x, transpose_b=True)), p=0.2)
    image = mx.sym.Convolution(mx.sym.var("image"), kernel=(3, 3), num_filter=8)
    symbol = mx.sym.Group([mx.sym.batch_dot(weights, x), image])
    found = echo.plan(symbol, fuse=True, recompute=["InstanceNorm"], strict=True, x=(2, 5, 64), image=(2, 8, 8, 8))
    assert not found.fused
    assert not found.failed
    assert any("without fused operators" in note and "reads its shape" in note for note in found.remarks)


def test_the_users_own_operators_cost_no_fused_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where those are looked at too, for they might need much less."""
    full = choose.best_plan

    def best(request: Request, passes: Sequence[Pass]) -> Any:
        if not is_fused(request):
            raise Surprise("unfused")
        return full(request, passes)

    monkeypatch.setattr(choose, "best_plan", best)
    monkeypatch.setattr(variant, "RULES", Rules(enough=0.0))
    plan = echo.plan(model(), max_overhead=None, **SHAPES)
    assert plan.fused
    assert any("Surprise: unfused" in note.text for note in plan.failed)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("transparent", [False, True])
def test_masks_that_miss_a_budget_cost_no_plan(
    strict: bool, transparent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget that is kept without them; whoever is strict gets the plan, too: nothing failed."""
    full, tried = choose.best_plan, []

    def best(request: Request, passes: Sequence[Pass]) -> Any:
        if any(node.op == PREFIX + "apply_mask" for node in request.graph.nodes):
            tried.append(request)
            raise BudgetError(1, 2, "masks")
        return full(request, passes)

    monkeypatch.setattr(choose, "best_plan", best)
    monkeypatch.setattr(Masked, "why_not_tried", lambda *_: "")
    example = EXAMPLES["dropout"]()
    # where inference draws random numbers, no Dropout is recomputed
    x, given = mx.sym.load_json(example.symbol.tojson().replace("always", "training")), example.shapes
    if transparent:
        with echo.enable(memory_budget=0.97, strict=strict):
            executor = x.simple_bind(mx.cpu(), **given)
        assert type(executor).__name__ == "PlannedExecutor"
    else:
        plan = echo.plan(x, memory_budget=0.97, strict=strict, **given)
        assert not plan.changes_nothing
        assert not plan.failed
        assert any(missed.pattern == DROPOUT.name and "cannot be planned" in missed.reason for missed in plan.missed)
    assert tried


def test_masks_that_are_a_small_part_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph is planned, not two, and the user is not told unless he asks."""
    x = mx.sym.Dropout(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64), name="drop")
    for _ in range(6):
        x = mx.sym.softmax(mx.sym.FullyConnected(x, num_hidden=4096)) * 2
    full, planned = choose.best_plan, []
    monkeypatch.setattr(choose, "best_plan", lambda request, passes: planned.append(request) or full(request, passes))
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    plan = echo.plan(x, data=(150, 64))
    assert len(planned) == 1
    assert "too small: the masks have 38,400 of " in str(plan.why("drop:0"))
    assert not any("too small" in note for note in plan.remarks)


@pytest.mark.parametrize(("before", "after", "bits"), [(0.5, 0.1, True), (0.5, 0.49, False)])
def test_within_a_budget_bits_replace_slower_operators(
    monkeypatch: pytest.MonkeyPatch, before: float, after: float, bits: bool
) -> None:
    """Plans within the budget, of which the one without bits needs half a step of recomputation."""
    full = choose.best_plan

    def best(request: Request, passes: Sequence[Pass]) -> Any:
        found = full(request, passes)
        masked = any(node.op == PREFIX + "apply_mask" for node in request.graph.nodes)
        seconds = (after if masked else before) * found.plan.step_seconds
        return found._replace(plan=type(found.plan)(**{**fields(found.plan), "overhead_seconds": seconds}))

    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setattr(choose, "best_plan", best)
    example = EXAMPLES["dropout"]()
    plan = echo.plan(example.symbol, memory_budget=1.0, max_overhead=None, **example.shapes)
    assert bits_of(plan) == ({"dropout"} if bits else set())
    assert bits or "nothing to gain: +49.0% time with masks as bits, +50.0% without" in " ".join(plan.remarks)


@pytest.mark.usefixtures("free_workspaces")
def test_masks_never_cost_the_other_fusions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a plan with bits needs more than the original graph, one without them is made."""
    full = choose.best_plan

    def best(request: Request, passes: Sequence[Pass]) -> Any:
        found = full(request, passes)
        if any(node.op == PREFIX + "apply_mask" for node in request.graph.nodes):
            after = found.plan.after
            more = type(after)(1 << 40, after.live_peak, after.static, after.at_peak, after.layers)
            return found._replace(plan=type(found.plan)(**{**fields(found.plan), "after": more}))
        return found

    data = mx.sym.Dropout(mx.sym.var("data"), p=0.3)
    cell = mx.rnn.LSTMCell(64, prefix="cell_")
    outputs, _ = cell.unroll(9, data, layout="NTC", merge_outputs=True)
    symbol = mx.sym.Dropout(outputs, p=0.3, name="drop")
    assert bits_of(echo.plan(symbol, data=(32, 9, 64), grad_req="write")) == {"lstm_layer", "dropout"}
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setattr(choose, "best_plan", best)
    plan = echo.plan(symbol, data=(32, 9, 64), grad_req="write")
    assert bits_of(plan) == {"lstm_layer"}
    assert "nothing to gain: 1099511.63 MB planned with masks as bits" in str(plan.why("drop"))


@pytest.mark.every(2)
@pytest.mark.parametrize("reachable", [1 << 40, 1])
def test_a_budget_that_fused_operators_miss_may_be_met_without(monkeypatch: pytest.MonkeyPatch, reachable: int) -> None:
    full = choose.best_plan

    def best(request: Request, passes: Sequence[Pass]) -> PlanResult:
        if is_fused(request):
            raise BudgetError(1, reachable, "everything")
        return full(request, passes)

    monkeypatch.setattr(choose, "best_plan", best)
    assert not plan(memory_budget="1GB").fused
    with pytest.raises(BudgetError) as caught:
        plan(memory_budget=1000)
    assert (caught.value.reachable == 1) == (reachable == 1), "the least of both"
    assert caught.value.reachable < 1 << 40


def test_fused_operators_that_need_more_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    full = choose.memory_before

    def nearly_nothing(request: Request, fused: Any) -> Any:
        before = full(request, fused)
        return type(before)(1, before.live_peak, {}, before.at_peak, before.layers)

    assert plan(policy="none").fused
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setattr(choose, "memory_before", nearly_nothing)
    assert not plan(policy="none").fused


def test_a_layer_falls_apart_where_its_steps_need_less_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # as one operator, the layer waits for the gradients of all steps: what is between the steps is alive at once
    example = decoder(mx.sym.relu)
    plan = echo.plan(example.symbol, max_overhead=None, **example.shapes)
    assert {name for name, _ in plan.fused if not is_layout(name)} == {"lstm_cell", "weighted_sum"}
    monkeypatch.setattr(variant, "RULES", Rules(enough=1.0))
    layer = echo.plan(example.symbol, max_overhead=9.0, **example.shapes)
    assert "lstm_layer" in {name for name, _ in layer.fused}
    assert plan.after.total < layer.after.total <= plan.before.total


@pytest.mark.slow
def test_graph_that_needs_much_less_unfused_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "BASES", BASES[:1])  # the others would need less still
    example = decoder(mx.sym.relu)
    plan = echo.plan(example.symbol, max_overhead=None, **example.shapes)
    assert not plan.fused
    assert plan.after.planned < 0.5 * plan.before.planned


@pytest.mark.parametrize("fewer", [False, True])
def test_further_bases_get_the_whole_search_only_if_chosen(monkeypatch: pytest.MonkeyPatch, fewer: bool) -> None:
    full, efforts = choose.best_plan, []

    def best(request: Request, passes: Sequence[Pass], known: Sequence[object] = ()) -> Any:
        efforts.append((is_fused(request), request.effort))
        found = full(request, passes, known)
        if not fewer or is_fused(request):
            return found
        after = dataclasses.replace(found.plan.after, planned=found.plan.after.planned // 4)
        return found._replace(plan=dataclasses.replace(found.plan, after=after))

    monkeypatch.setattr(choose, "best_plan", best)
    monkeypatch.setattr(variant, "RULES", Rules(enough=0.0))
    plan = echo.plan(model(), max_overhead=None, **SHAPES)
    assert bool(plan.fused) != fewer
    assert efforts[0] == (True, 1.0)
    assert (False, choose._GLANCE) in efforts
    assert ((False, 1.0) in efforts) == fewer


def test_fused_operators_that_would_need_more_memory_are_near_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant.Variant, "is_larger", property(lambda self: self.before is not None))
    plan = echo.plan(model(), max_overhead=None, **SHAPES)
    assert not {name for name, _ in plan.fused} - MASKS
    larger = {missed.pattern: missed.reason for missed in plan.missed if "the original graph" in missed.reason}
    assert larger["lstm_cell"].startswith("the graph with all fused operators needs ")
    assert any("the graph with all fused operators needs" in remark for remark in plan.remarks)


def with_dropout(length: int = 12) -> Symbol:
    y = mx.sym.var("data")
    for index in range(length):
        y = mx.sym.tanh(mx.sym.sin(mx.sym.FullyConnected(y, num_hidden=64, name=f"fc{index}")))
        y = mx.sym.Dropout(y, p=0.5, name=f"drop{index}")
    return mx.sym.LinearRegressionOutput(y, mx.sym.var("label"), name="out")


def test_search_that_had_to_end_costs_no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(late: int) -> tuple[echo.Plan, list[bool]]:
        """The plan where the search with that number ends late, and which searches started from another choice."""
        warm: list[bool] = []

        def chosen(policy: Any, problem: Any) -> Any:
            warm.append(problem.warm_start is not None)
            return run_with_deadline(policy, problem)[0], len(warm) - 1 != late

        monkeypatch.setattr(bind_plan, "PLANNER", Planner())
        monkeypatch.setattr("echo.passes.select.run_with_deadline", chosen)
        return echo.plan(with_dropout(), max_overhead=None, max_planning=1e6, data=(512, 32)), warm

    whole, warm = planned(late=-1)
    assert not whole.is_late
    assert warm == [False, False]
    assert {pattern for pattern, *_ in whole.fused} == {"dropout"}
    base_was_late, warm = planned(late=0)
    assert base_was_late.is_late
    assert warm == [False, True]
    masks_were_late, warm = planned(late=1)
    assert masks_were_late.is_late
    assert warm == [False, False, True]
    for plan in (base_was_late, masks_were_late):
        assert plan.fused == whole.fused
        assert plan.after.planned <= 1.03 * whole.after.planned


def test_no_masks_where_no_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setattr("echo.passes.select.run_with_deadline", lambda policy, problem: (policy.choose(problem), False))
    monkeypatch.setattr(variant.Variant, "warmed", lambda *_: None)
    plan = echo.plan(with_dropout(), max_overhead=None, max_planning=1e6, data=(512, 32))
    assert plan.is_late
    assert not plan.fused


@pytest.mark.parametrize(
    ("reachable", "left", "searched", "keeps"),
    [
        pytest.param({10: 9, 30: 25, 20: 15}, 5.0, [10, 20, 30], False, id="the nearest first"),
        pytest.param({30: 25, 20: 7}, 5.0, [20], True, id="the nearest reaches it"),
        pytest.param({30: 7, 20: 15}, 5.0, [20, 30], True, id="another reaches it"),
        pytest.param({30: 7, 20: 15}, 0.0, [20], False, id="no time is left for the others"),
    ],
)
def test_graph_that_missed_the_budget_by_the_least_is_searched_first(
    reachable: dict[int, int], left: float, searched: list[int], keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echo.system.process.time.monotonic", lambda: 100.0)
    found: list[int] = []

    def unreached(before: int) -> Unreached:
        def search(deadline: Deadline) -> BudgetError:
            assert deadline.at == 100 + left
            found.append(before)
            return BudgetError(8, reachable[before], "all")

        return Unreached(before, search)

    graph = Graph((Node("null", "x"),), (Entry(0),), (0,), (0, 1))
    framework: Any = None
    request = Request(
        graph, Options(), framework, unreached=list(map(unreached, reachable)), deadline=Deadline(9, 100 + left, 9)
    )
    stages = choose.Stages((), (), ())
    kept = variant.Variant(Fused(graph), None, PlanResult(*[None] * 4))  # type: ignore[arg-type]
    monkeypatch.setattr(choose, "_best", lambda request, _: kept if request.known_only else None)
    least = choose._with_least(request, stages, variant.Variant(Fused(graph), None, None, BudgetError(8, 40, "all")))
    assert found == searched
    assert (least is kept) == keeps
    if not keeps:
        assert least.missed is not None
        assert least.missed.reachable == min(reachable[before] for before in searched)
