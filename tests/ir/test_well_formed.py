"""Graphs made by hand, or by a file, whose numbers name what is not there: an error says so, and nothing crashes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echo.errors import GraphError
from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType
from tests.made_graphs import Builder


def graph() -> TrainingGraph:
    """x, its tanh, a head and the gradient; node 3 is the gradient, with two inputs and an output."""
    b = Builder()
    x = b.variable("x", 8)
    y = b.forward("tanh", "y", (8,), x)
    head = b.variable("head", 8, forward=False)
    gradient = b.backward("_backward_tanh", "dx", (8,), head, y, inplace=((0, 0, False),), external=frozenset({0}))
    return b.graph([y, gradient])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an input behind it": ({"inputs": (Entry(4), Entry(1))}, r"no output \(4, 0, 0\) before it"),
    "itself as input": ({"inputs": (Entry(3), Entry(1))}, "before it"),
    "an output that a node does not have": ({"inputs": (Entry(2, 1), Entry(1))}, "before it"),
    "a negative input": ({"inputs": (Entry(-1), Entry(1))}, "before it"),
    "a dependency far away": ({"control_deps": (90_000_000,)}, "control_deps: no node 90000000 before it"),
    "a dependency on itself": ({"control_deps": (3,)}, "control_deps: no node 3 before it"),
    "a negative dependency": ({"control_deps": (-2,)}, "control_deps: no node -2"),
    "in place of an input far away": ({"inplace": ((5_000_000, 0, False),)}, "inplace: there is no pair of input 5"),
    "in place of a negative input": ({"inplace": ((-1, 0, True),)}, "inplace"),
    "in place, by an output that is not there": ({"inplace": ((0, 1, False),)}, "input 0 and output 1"),
    "ignores an input that is not there": ({"ignored": frozenset({2})}, "ignored: expected numbers below 2"),
    "ignores a negative input": ({"ignored": frozenset({-1})}, "ignored"),
    "an external output that is not there": ({"external": frozenset({1})}, "external: expected numbers below 1"),
    "an untouched output that is not there": ({"untouched": frozenset({0, 7})}, "untouched: expected numbers below 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_number(name: str) -> None:
    changes, message = BAD[name]
    good = graph()
    nodes = (*good.nodes[:3], replace(good.nodes[3], **changes))
    with pytest.raises(GraphError, match=rf"node 3 \('dx'\): .*{message}|node 3 \('dx'\): {message}"):
        replace(good, nodes=nodes)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_number_in_a_file(name: str) -> None:
    changes, _ = BAD[name]
    value = graph().to_json()
    for key, change in changes.items():
        value["nodes"][3][key] = [list(x)[:3] if isinstance(x, tuple) else x for x in change]
    with pytest.raises(GraphError):
        TrainingGraph.from_json(value)


@pytest.mark.parametrize("entry", [Entry(4), Entry(3, 1), Entry(-1)])
def test_a_bad_output(entry: Entry) -> None:
    with pytest.raises(GraphError, match="there is no such entry"):
        replace(graph(), outputs=(entry,))


def test_a_good_graph_is_left_alone() -> None:
    good = graph()
    assert TrainingGraph.from_json(good.to_json()) == replace(good)


def test_a_dropout_without_a_mask_is_an_operator_like_others() -> None:
    """In MXNet each has one; a graph of another framework has nodes of one output."""
    node = graph().nodes[1]
    assert not replace(node, op="Dropout").is_masked
    assert replace(node, op="Dropout", outputs=(TensorType((8,)), TensorType((8,)))).is_masked
