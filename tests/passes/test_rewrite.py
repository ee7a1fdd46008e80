"""The plan goes into attributes of the nodes that run twice, and nothing else of the user's graph changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echo.frontend.symbols import graph_of, symbol_of
from echo.ir.graph import Entry, Graph, Node
from echo.ir.op_spec import MIRROR_ATTRIBUTE, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.passes.request import Request
from echo.passes.rewrite import Rewrite, Rewritten
from echo.passes.select import Selection
from echo.plans.decisions import mark
from echo.plans.options import Options
from tests.conftest import ALL_CASES, Case, FakeFrontend, any_case, special_case


def rewritten(case: Case, entries: Any, hook: bool = True, nodes: Any = None, match_range: int = 16) -> Rewritten:
    chosen = frozenset(entries)
    run_twice = frozenset(entry.node for entry in chosen) if nodes is None else frozenset(nodes)
    request = Request(case.graph, Options(), FakeFrontend(case.training, hook=hook))
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


def test_without_the_hook_mxnets_own_attribute_is_set() -> None:
    case = special_case("slices")
    graph = rewritten(case, [Entry(number_of(case, "parts"), 0)], hook=False).graph
    assert marks(graph) == {}
    assert marks(graph, MIRROR_ATTRIBUTE) == {"parts": "True"}


def test_nodes_that_mxnet_added_cannot_be_marked() -> None:
    case = special_case("slices")
    parts = number_of(case, "parts")
    nodes = list(case.training.nodes)
    nodes[parts] = replace(nodes[parts], user=None)
    foreign = replace(case, training=replace(case.training, nodes=tuple(nodes)))
    assert rewritten(foreign, [Entry(parts, 0)]).graph == case.graph


def test_nothing_chosen_nothing_changed() -> None:
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


def test_what_the_user_marked_before_is_replaced() -> None:
    case = special_case("slices")
    parts = number_of(case, "parts")
    user = case.training.nodes[parts].user
    assert user is not None
    old = replace(case, graph=case.graph.with_attrs({user: {PLAN_ATTRIBUTE: "3"}}))
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
