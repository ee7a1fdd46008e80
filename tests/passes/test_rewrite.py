"""The plan goes into attributes of the nodes that run twice, and nothing else of the original graph changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo.frontend.capture import training_graph
from echo.frontend.symbols import graph_of, symbol_of
from echo.ir.graph import Entry, Graph, Node
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, MIRROR_ATTRIBUTE, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.ir.training_graph import MemoryPool, Runner
from echo.passes.request import Request
from echo.passes.rewrite import Confirm, Confirmed, Rewrite, Rewritten
from echo.passes.rules import RULES
from echo.passes.select import Selection
from echo.plans.decisions import RECOMPUTE, STASH, mark
from echo.plans.options import Options
from echo.plans.plan import Plan
from tests.support.cases import ALL_CASES, Case, any_case, model_case, special_case
from tests.support.fake_frontend import FakeFramework
from tests.support.planning import costs_of


def rewritten(case: Case, entries: Any, hook: bool = True, nodes: Any = None, match_range: int = 16) -> Rewritten:
    chosen = frozenset(entries)
    run_twice = frozenset(entry.node for entry in chosen) if nodes is None else frozenset(nodes)
    request = Request(case.graph, Options(), FakeFramework(case.training, hook=hook))
    selection = Selection(chosen, {}, dict.fromkeys(run_twice, 1), match_range, 0, 0.0)
    return Rewrite().run(request, case.training, selection)


def marks(graph: Graph, key: str = PLAN_ATTRIBUTE) -> dict[str, str]:
    return {node.name: node.attrs[key] for node in graph.nodes if key in node.attrs}


def number_of(case: Case, name: str) -> int:
    return next(number for number, node in enumerate(case.training.nodes) if node.forward and node.name == name)


def test_chosen_outputs_are_written_down() -> None:
    case = special_case("slices")
    parts, gates = number_of(case, "parts"), number_of(case, "gates")
    graph = rewritten(case, [Entry(parts, 2), Entry(parts, 0), Entry(gates)]).graph
    assert marks(graph) == {"parts": "0,2", "gates": "0"}


def test_nodes_that_do_not_run_twice_are_left_alone() -> None:
    case = special_case("slices")
    parts, gates = number_of(case, "parts"), number_of(case, "gates")
    assert marks(rewritten(case, [Entry(parts, 0), Entry(gates)], nodes=[parts]).graph) == {"parts": "0"}


def test_rewrite_without_the_hook_sets_mxnets_attribute() -> None:
    case = special_case("slices")
    graph = rewritten(case, [Entry(number_of(case, "parts"), 0)], hook=False).graph
    assert marks(graph) == {}
    assert marks(graph, MIRROR_ATTRIBUTE) == {"parts": "True"}


def test_nodes_that_mxnet_added_cannot_be_marked() -> None:
    case = special_case("slices")
    parts = number_of(case, "parts")
    nodes = list(case.training.nodes)
    nodes[parts] = replace(nodes[parts], original=None)
    foreign = replace(case, training=replace(case.training, nodes=tuple(nodes)))
    assert rewritten(foreign, [Entry(parts, 0)]).graph == case.graph


def test_rewrite_without_entries_changes_nothing() -> None:
    case = special_case("dropout")
    assert rewritten(case, []) == Rewritten(case.graph, None)


@pytest.mark.parametrize(("chosen", "bound"), [(16, None), (1, 1), (64, 64)])
def test_mxnets_own_match_range_is_left_alone(chosen: int, bound: int | None) -> None:
    assert rewritten(special_case("slices"), [], match_range=chosen).match_range == bound


@pytest.mark.parametrize("hook", [True, False])
@pytest.mark.parametrize("name", ALL_CASES)
def test_the_rest_of_the_graph_stays(name: str, hook: bool) -> None:
    case = any_case(name)
    graph = rewritten(case, case.draw(0, 0.5, hook), hook).graph
    key = PLAN_ATTRIBUTE if hook else MIRROR_ATTRIBUTE
    assert marks(graph, key)
    stripped = [replace(node, attrs={k: v for k, v in node.attrs.items() if k != key}) for node in graph.nodes]
    assert replace(graph, nodes=tuple(stripped)) == case.graph
    symbol = symbol_of(graph)
    assert symbol.list_arguments() == case.symbol.list_arguments()
    assert symbol.list_auxiliary_states() == case.symbol.list_auxiliary_states()
    assert symbol.list_outputs() == case.symbol.list_outputs()
    assert graph_of(symbol) == graph, "MXNet keeps the attributes"


def test_the_users_graph_is_not_touched() -> None:
    case = special_case("dropout")
    before = case.graph.to_json()
    rewritten(case, case.draw(0, 1.0))
    assert case.graph.to_json() == before


def test_earlier_marks_are_replaced() -> None:
    case = special_case("slices")
    parts = number_of(case, "parts")
    original = case.training.nodes[parts].original
    assert original is not None
    old = replace(case, graph=case.graph.with_attrs({original: {PLAN_ATTRIBUTE: "3"}}))
    assert marks(rewritten(old, [Entry(parts, 1)]).graph) == {"parts": "1"}


def test_mark_takes_numbers_of_the_users_graph() -> None:
    case = special_case("slices")
    number = next(i for i, node in enumerate(case.graph.nodes) if node.name == "parts")
    assert marks(mark(case.graph, {number: [1, 3]}, hook=True)) == {"parts": "1,3"}
    assert marks(mark(case.graph, {number: [1, 3]}, hook=False), MIRROR_ATTRIBUTE) == {"parts": "True"}


def test_custom_operators_get_no_mark() -> None:
    """Custom hands each attribute to a constructor of the user's, which would not know it."""
    nodes = (Node("null", "data"), Node("Custom", "custom", (Entry(0),)), Node("tanh", "tanh", (Entry(1),)))
    marked_graph = mark(Graph(nodes, (Entry(2),), (0,), (0, 1, 2, 3)), {}, hook=True, match_range=4)
    assert [RANGE_ATTRIBUTE in node.attrs for node in marked_graph.nodes] == [False, False, True]


def confirmed(case: Case, planned: int, match_range: int | None = None, **options: object) -> Confirmed:
    asked: list[int] = []

    def mxnet_memory_plan(graph: object, value: int) -> int:
        asked.append(value)
        return planned

    framework = FakeFramework(case.training, planned=mxnet_memory_plan)
    request = Request(case.graph, Options.of(**options), framework)
    found = Confirm().confirmed(request, case.training, Rewritten(case.graph, match_range))
    assert asked == [match_range or framework.match_range], (
        "the mxnet_memory_plan is asked once, as the graph will be bound"
    )
    return found


def test_plan_with_less_memory_is_accepted() -> None:
    case = model_case("nmt")
    assert confirmed(case, case.training.planned_bytes - 1) == Confirmed(case.training.planned_bytes - 1, True)
    assert confirmed(case, 5, match_range=2).accepted


@pytest.mark.parametrize("more", [0, 1])
def test_no_gain_is_refused(more: int) -> None:
    case = model_case("nmt")
    found = confirmed(case, case.training.planned_bytes + more)
    assert not found.accepted
    assert found.planned_bytes == case.training.planned_bytes
    assert found.reason == "nothing to gain"


def test_a_small_gain_is_refused_where_frees_come_late() -> None:
    case = model_case("nmt")
    late = MemoryPool(4096, 2 << 20, powers=False, reuse_delay=3)
    for pool, least in ((None, 0.0), (replace(late, reuse_delay=0), 0.0), (late, RULES.late_gain)):
        training = replace(case.training, runner=Runner.DYNAMIC, pool=pool)
        pooled = replace(case, training=training)
        for part in (0.99, 0.95, 0.5):
            planned = int(part * training.planned_bytes)
            result = confirmed(pooled, planned)
            assert result.accepted == (1 - part > least)
            assert result.accepted or "frees arrays late" in result.reason
            assert confirmed(pooled, planned, memory_budget=0.9).accepted, "the user asks for memory"
            assert confirmed(pooled, planned, recompute="Activation").accepted


def test_forced_plan_is_confirmed_although_it_costs_memory() -> None:
    case = model_case("nmt")
    found = confirmed(case, case.training.planned_bytes + 1, recompute="Activation")
    assert found == Confirmed(case.training.planned_bytes + 1, True)


def test_plan_that_saves_little_in_a_short_step_is_left() -> None:
    """The Python of its executor takes a part of such a step."""
    case = model_case("nmt")

    def verdict(step: float, share: float, measured: int = 1, **options: object) -> Confirmed:
        planned = int(share * case.training.planned_bytes)
        framework = FakeFramework(case.training, static={}, planned=lambda graph, match_range: planned)
        costs = replace(costs_of(case.training), step_seconds=step, measured=measured, guessed=0.0)
        selection = Selection(frozenset(), {}, {}, 16, planned, 0.0)
        request = Request(case.graph, Options.of(**options), framework)
        return Confirm().run(request, case.training, costs, Rewritten(case.graph, None), selection)

    left = verdict(RULES.launch / 0.05, 0.97)
    assert left == Confirmed(case.training.planned_bytes, False, "it would save 3.0% of all bytes for 5.0% of the time")
    assert verdict(RULES.launch / 0.001, 0.97).accepted, "a step in which that is nothing"
    assert verdict(RULES.launch / 0.05, 0.9).accepted, "many bytes"
    assert verdict(RULES.launch / 0.05, 0.97, measured=0).accepted, "an unknown time"
    for options in ({"max_overhead": 0.1}, {"memory_budget": 0.99}, {"recompute": "Activation"}, {"policy": "echo"}):
        assert verdict(RULES.launch / 0.05, 0.97, **options).accepted, "the user's wish"


def test_gradients_that_would_add_up_otherwise_are_refused() -> None:
    """A matrix product that accumulates in place may round differently from one that is added."""
    case = special_case("many readers")
    assert case.training.accumulations, "the example has gradients of more than eight readers"
    flipped = tuple(not one for one in case.training.accumulations)
    framework = FakeFramework(replace(case.training, accumulations=flipped), planned=lambda graph, match_range: 1)
    found = Confirm().confirmed(Request(case.graph, Options(), framework), case.training, Rewritten(case.graph, None))
    assert not found.accepted
    assert "add up gradients" in found.reason


def plan_of(name: str, **options: object) -> Plan:
    model = SMALL[name]()
    return echo.plan(model.symbol, fuse=False, **options, **model.shapes)


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("name", ["nmt", "resnet50_v1"])
def test_every_map_that_a_gradient_reads_has_a_decision(name: str) -> None:
    case, plan = model_case(name), plan_of(name, max_overhead=None)
    marks = {mark.node: {GRADIENT_ATTRIBUTE: mark.attrs[GRADIENT_ATTRIBUTE]} for mark in plan.marks
             if GRADIENT_ATTRIBUTE in mark.attrs}  # fmt: skip
    training = training_graph(case.graph, case.binding, mx.cpu(), marks)
    decided = {(decision.node, decision.output): decision for decision in plan.decisions}
    for entry in training.backward_readers:
        node = training.nodes[entry.node]
        if node.is_variable:
            continue
        decision = decided[(-1 if node.original is None else node.original, entry.index)]
        assert decision.bytes == node.outputs[entry.index].bytes
        assert decision.reason
    assert {decision.action for decision in plan.decisions} == {STASH, RECOMPUTE}
    assert plan.recomputed_nodes >= len({decision.node for decision in plan.recomputed}), "some run more than once"


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("name", ["nmt", "lm", "resnet50_v2"])
def test_totals_are_consistent(name: str) -> None:
    plan = plan_of(name, max_overhead=None)
    for memory in (plan.before, plan.after):
        assert 0 < memory.live_peak <= memory.planned
        assert sum(memory.at_peak.values()) == memory.live_peak
        assert memory.total == memory.planned + sum(memory.static.values())
    assert plan.after.planned < plan.before.planned == model_case(name).training.planned_bytes
    assert plan.after.static == plan.before.static


@pytest.mark.usefixtures("cheap_planning")
def test_reasons_name_what_they_are_about() -> None:
    plan = plan_of("nmt", keep="Activation", max_overhead=None)
    reasons = {decision.op: decision.reason for decision in plan.decisions if decision.action == STASH}
    assert reasons["Activation"] == "kept: matches 'Activation'"
    assert reasons["FullyConnected"].startswith("FullyConnected is compute-heavy")
    assert reasons["SoftmaxOutput"] == "an output of the symbol lives to the end anyway"
    assert all("recomputed from" in decision.reason for decision in plan.recomputed)


@pytest.mark.usefixtures("cheap_planning")
def test_a_node_that_no_gradient_reads_is_said_not_to_be_recomputed() -> None:
    data = mx.sym.var("data")
    symbol = mx.sym.MakeLoss(mx.sym.tanh(data, name="read") + mx.sym.negative(data, name="unread"), name="loss")
    notes = list(map(str, echo.plan(symbol, grad_req="write", recompute=["read", "unread"], data=(64, 64)).notes))
    assert "recompute: no gradient reads unread, so nothing is recomputed there" in notes
