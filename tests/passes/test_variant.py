"""Between graphs: the most fused one that needs hardly more than the least, and the budget that is missed by least."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import pytest

import echo
from echo.errors import BudgetError
from echo.ir.graph import Entry, Graph, Node
from echo.passes.patterns.apply import Fused
from echo.passes.request import Request
from echo.passes.rules import RULES
from echo.passes.variant import PlanResult, Variant, choose
from echo.plans.decisions import Note, NoteKind
from echo.plans.options import Options
from echo.policies.problem import WarmStart
from echo.system.process import Deadline

GRAPH = Graph((Node("null", "x"),), (Entry(0),), (0,), (0, 1))


def memory(planned: int, workspaces: int = 0) -> Any:
    total = planned + 100 + workspaces
    return SimpleNamespace(planned=planned, total=total, chosen=planned, workspaces=workspaces)


def plan_variant(
    planned: int, operators: int = 0, hidden: int = 0, stock: int = 1000, workspaces: int = 0, seconds: float = 0.0
) -> Variant:
    """A variant, whose operators were measured where ``seconds`` are given."""
    fused = Fused(GRAPH, tuple(("lstm_cell", number) for number in range(operators)), hidden=hidden)
    made = SimpleNamespace(
        after=memory(planned, workspaces), step_seconds=0.9 * seconds, overhead_seconds=0.1 * seconds
    )
    plan: Any = SimpleNamespace(plan=made, timed=bool(seconds))
    return Variant(fused, memory(stock) if operators else None, plan)


def missing(reachable: int) -> Variant:
    return Variant(Fused(GRAPH), None, None, BudgetError(10, reachable, "weights"))


def request(budget: float | None = None) -> Any:
    return SimpleNamespace(options=SimpleNamespace(memory_budget=budget))


@pytest.mark.parametrize(
    ("more", "part", "first"),
    [
        (RULES.slack - 0.01, 0.0, True),  # the times are unknown
        (RULES.slack + 0.01, 0.0, False),
        (RULES.slack - 0.01, RULES.faster - 0.01, True),
        (RULES.slack + 0.01, RULES.faster - 0.01, False),
        (RULES.slack - 0.01, RULES.faster + 0.01, False),
        (RULES.more - 0.01, RULES.faster + 0.01, True),
        (RULES.more - 0.01, 1.01, False),  # slower, and not smaller
        (1.0, 1.01, False),
        (0.99, 2.0, True),  # slower, and smaller
    ],
)
def test_the_most_fused_graph_may_need_a_little_more(more: float, part: float, first: bool) -> None:
    one = Fused(GRAPH).graph.nodes[0].name
    variants = [plan_variant(int(more * 1000) - 100, 1, seconds=part), plan_variant(900, seconds=1.0)]
    chosen = choose(variants, GRAPH)
    if first:
        assert chosen is variants[0]
        return
    assert chosen.planned is variants[1].planned
    (left,) = chosen.fused.missed
    assert (left.name, left.pattern) == (one, "lstm_cell")
    times = f", and {part:.2f} of the time" if part else ""
    assert left.reason == f"{int(more * 1000) / 1000:.2f} times the memory of the plan without it{times}"


@pytest.mark.parametrize(
    ("planned", "part", "first"),
    [(900, RULES.drawing - 0.01, True), (901, RULES.drawing - 0.01, False), (900, RULES.drawing + 0.01, False)],
)
def test_a_graph_that_is_larger_by_workspaces_alone_may_be_less_much_faster(
    planned: int, part: float, first: bool
) -> None:
    sizes = (1000 * planned, 900_000)
    variants = [
        plan_variant(sizes[0], 1, stock=1_000_000, workspaces=150_000, seconds=part),
        plan_variant(sizes[1], seconds=1.0),
    ]
    assert (choose(variants, GRAPH) is variants[0]) == first


def test_times_of_short_steps_do_not_decide() -> None:
    """They are noise: the graph with the most fused operators is taken, as where nothing was measured."""
    assert choose([plan_variant(900, 1, seconds=2e-4), plan_variant(900, seconds=1e-4)], GRAPH).fused.match_sites
    assert not choose([plan_variant(900, 1, seconds=2e-2), plan_variant(900, seconds=1e-2)], GRAPH).fused.match_sites


def test_hidden_bytes_of_operators_count() -> None:
    """The fused graph plans more, and does away with what the user's operators hold inside."""
    variants = [plan_variant(1900, 1, hidden=900), plan_variant(1100)]
    assert choose(variants, GRAPH) is variants[0]
    assert choose([plan_variant(1900, 1), plan_variant(1100)], GRAPH).fused.match_sites == ()


def test_a_graph_that_misses_the_budget_is_not_chosen() -> None:
    variants = [missing(20), plan_variant(900)]
    assert choose(variants, GRAPH) is variants[1]


def test_the_budget_that_is_missed_by_least_is_told() -> None:
    variants = [missing(30), missing(20), missing(25)]
    chosen = choose(variants, GRAPH)
    assert chosen.fused is variants[0].fused
    with pytest.raises(BudgetError) as caught:
        chosen.result(request())
    assert caught.value.reachable == 20
    assert chosen.without_refinement(Fused(GRAPH), BudgetError(10, 15, "weights")).missed.reachable == 15  # type: ignore[union-attr]


def test_trial_below_the_threshold_or_in_budget_is_enough() -> None:
    little = int(RULES.enough * 1000)
    assert plan_variant(little, 1).is_enough(request())
    assert not plan_variant(little + 1, 1).is_enough(request())
    assert plan_variant(little + 1, 1).is_enough(request(0.9)), "whatever keeps a budget is"
    assert not plan_variant(little).is_enough(request()), "the original graph is the last anyway"
    assert not missing(20).is_enough(request(0.9))


def test_workspaces_may_eat_what_is_saved() -> None:
    """Then graphs with less fused operators are planned too, and one of those may be taken."""
    some, all_of_it = RULES.tiny, 20 * RULES.tiny
    layers, cells = [
        plan_variant(6 * some, count, stock=all_of_it, workspaces=drawn) for count, drawn in ((1, 10 * some), (9, some))
    ]
    assert plan_variant(6 * some, 1, stock=all_of_it, workspaces=some // 2).is_enough(request())
    assert not layers.is_enough(request())
    assert choose([layers, cells], GRAPH).planned is cells.planned
    assert plan_variant(6 * some, 1, stock=all_of_it, workspaces=14 * some + 1).is_larger
    assert not plan_variant(6 * some, 1, stock=all_of_it, workspaces=14 * some).is_larger


def test_few_bytes_of_workspaces_do_not_decide_for_tiny_graphs() -> None:
    layers = plan_variant(300, 1, workspaces=RULES.tiny)
    assert choose([layers, plan_variant(350, 9)], GRAPH) is layers
    assert plan_variant(300, 1, workspaces=RULES.tiny + 701).is_larger
    assert not plan_variant(300, 1, workspaces=RULES.tiny + 700).is_larger


def test_larger_than_the_users_own() -> None:
    assert plan_variant(1001, 1).is_larger
    assert not plan_variant(1000, 1).is_larger
    assert not plan_variant(5000).is_larger


@pytest.mark.parametrize(
    ("planned", "seconds", "options", "reason"),
    [
        pytest.param(500, 1.09, {}, "", id="within the bound"),
        pytest.param(500, 1.54, {}, "would take 1.54 of the time of a step", id="beyond the bound"),
        pytest.param(960, 1.01, {}, "would take 1.01 of the time of a step", id="slower for four per cent"),
        pytest.param(960, 0.99, {}, "would take 0.99 of the time of a step", id="hardly faster for four per cent"),
        pytest.param(960, 0.96, {}, "", id="faster for four per cent"),
        pytest.param(500, 1.54, {"max_overhead": 0.6}, "", id="within another bound"),
        pytest.param(500, 1.54, {"max_overhead": None}, "", id="without a bound"),
        pytest.param(500, 1.54, {"memory_budget": 0.5}, "", id="a budget"),
        pytest.param(500, 1.54, {"fuse": "memory"}, "", id="memory first"),
        pytest.param(500, 1.19, {"max_time": 1.2}, "", id="within a bound on the step"),
        pytest.param(500, 1.21, {"max_time": 1.2}, "would take 1.21 of the time of a step", id="beyond that bound"),
        pytest.param(
            500,
            0.9,
            {"max_time": 0.8, "memory_budget": 0.5},
            "would take 0.90 of the time of a step",
            id="beyond that bound within a budget",
        ),
        pytest.param(500, 0.0, {}, "", id="not measured"),
    ],
)
def test_graph_that_is_slower_than_the_bound_allows_says_so(
    planned: int, seconds: float, options: dict[str, Any], reason: str
) -> None:
    asked: Any = SimpleNamespace(options=Options.of(**options), stock_seconds=lambda: 1.0)
    assert plan_variant(planned - 100, 1, stock=900, seconds=seconds).why_slower(asked) == reason


def test_fused_operators_have_to_be_surely_faster_in_a_short_step() -> None:
    step = 0.6 * RULES.step
    asked: Any = SimpleNamespace(options=Options(), stock_seconds=lambda: step)
    own_bound: Any = SimpleNamespace(options=Options.of(max_overhead=0.1), stock_seconds=lambda: step)
    unsure, sure = (plan_variant(400, 1, stock=900, seconds=part * step) for part in (0.95, 0.9))
    assert unsure.why_slower(asked) == "would take 0.98 of the time of a step"
    assert not sure.why_slower(asked)
    assert not unsure.why_slower(own_bound)


def test_python_of_an_executor_counts_in_a_short_step_that_saves_few_bytes() -> None:
    step = 4 * RULES.launch
    asked: Any = SimpleNamespace(options=Options.of(max_overhead=0.1), stock_seconds=lambda: step)
    few, many = (plan_variant(planned - 100, 1, stock=900, seconds=0.9 * step) for planned in (960, 500))
    assert few.why_slower(asked) == "would take 1.15 of the time of a step"
    assert not many.why_slower(asked)


@pytest.mark.parametrize(
    ("late", "left", "budget", "expected"),
    [
        pytest.param(True, 2.0, None, True, id="late, with time for this"),
        pytest.param(False, 2.0, None, False, id="not late"),
        pytest.param(True, 0.9, None, False, id="no time left"),
        pytest.param(True, 2.0, 0.5, False, id="a budget"),
    ],
)
def test_a_late_refinement_starts_from_the_choice(
    late: bool, left: float, budget: float | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echo.system.process.time.monotonic", lambda: 100.0)
    notes = [Note("late", NoteKind.LATE)] if late else []
    framework: Any = None
    asked = Request(GRAPH, Options(memory_budget=budget), framework, notes=notes, deadline=Deadline(9, 100 + left, 9))
    start = WarmStart(())
    plan: Any = None
    planned = PlanResult(plan, GRAPH, GRAPH, start, other_seconds=1.0)
    warmed = Variant(Fused(GRAPH), None, planned).warmed(asked)
    assert (warmed is not None) == expected
    if warmed is not None:
        assert warmed.warm_start == replace(start, is_known=True)
        assert (warmed.deadline.at, warmed.deadline.length) == (102.0, 2.0)
    assert Variant(Fused(GRAPH), None, planned._replace(warm_start=None)).warmed(asked) is None


@pytest.mark.parametrize(("ratio", "expected"), [(1.5, 1.35), (1.0, None)])
def test_another_batch_size_takes_its_time_by_the_ratio_of_the_first(ratio: float, expected: float | None) -> None:
    """Hardly any of its operators are measured; a bound on recomputation is one on the original step, too."""
    unmeasured = plan_variant(500, operators=2, seconds=1.0)
    unmeasured = replace(unmeasured, planned=SimpleNamespace(plan=unmeasured.plan, timed=False))
    asked: Any = SimpleNamespace(warm_start=WarmStart((), step_ratio=ratio), stock_seconds=lambda: None)
    assert unmeasured._stock_seconds(asked) == (None if expected is None else pytest.approx(expected))
    assert plan_variant(500)._stock_seconds(asked) is None


@pytest.mark.slow
def test_small_recurrent_model_gets_no_plan_that_is_predicted_slower() -> None:
    data, label = mx.sym.var("data"), mx.sym.var("softmax_label")
    cell = mx.rnn.FusedRNNCell(48, num_layers=2, mode="lstm", dropout=0.2, prefix="lstm_")
    embedded = mx.sym.Embedding(data, input_dim=60, output_dim=32)
    output, _ = cell.unroll(60, embedded, merge_outputs=True, layout="TNC")
    scores = mx.sym.FullyConnected(mx.sym.reshape(output, shape=(-1, 48)), num_hidden=60)
    symbol = mx.sym.SoftmaxOutput(scores, mx.sym.reshape(label, shape=(-1,)), name="softmax")
    plan = echo.plan(symbol, data=(60, 8), softmax_label=(60, 8))
    assert plan.time is None or plan.time.ratio <= 1.10
