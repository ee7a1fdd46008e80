"""What costs the same has the same signature: operators, attributes, types and layouts, and no name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echo.estimators.signatures import (
    attributes,
    blocked_nodes,
    forward_node,
    is_blocked,
    is_free,
    signature,
    unrolled_nodes,
)
from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType
from tests.made_graphs import Builder

IMAGE = (2, 3, 8, 8)


def network() -> TrainingGraph:
    """x -> conv -> relu -> flat, and the gradient of the relu."""
    b = Builder()
    x, weight = b.variable("x", *IMAGE), b.variable("weight", 3, 3, 1, 1)
    conv = b.forward("Convolution", "conv", IMAGE, x, weight, attrs={"kernel": "(1,1)", "__layer__": "a"})
    relu = b.forward("Activation", "relu", IMAGE, conv, attrs={"act_type": "relu"})
    flat = b.forward("Flatten", "flat", (2, 192), relu, inplace=((0, 0, True),))
    head = b.variable("head", 2, 192, forward=False)
    up = b.backward("_backward_reshape", "up", IMAGE, head, control_deps=(flat.node,))
    grad = b.backward("_backward_Activation", "grad", IMAGE, up, relu, control_deps=(relu.node,))
    return b.graph([flat, grad])


GRAPH = network()
AT = {node.name: number for number, node in enumerate(GRAPH.nodes)}


def changed(which: str, /, **fields: Any) -> str:
    nodes = list(GRAPH.nodes)
    nodes[AT[which]] = replace(nodes[AT[which]], **fields)
    return signature(replace(GRAPH, nodes=tuple(nodes)), AT["relu"])


@pytest.mark.parametrize(
    ("name", "fields", "same"),
    [
        ("relu", {"name": "other"}, True),
        ("relu", {"attrs": {"act_type": "relu", "__layer__": "b"}}, True),
        ("relu", {"attrs": {"act_type": "tanh"}}, False),
        ("relu", {"op": "LeakyReLU"}, False),
        ("relu", {"outputs": (TensorType(IMAGE, 2),)}, False),
        ("conv", {"outputs": (TensorType((2, 3, 8, 9)),)}, False),
        ("conv", {"op": "other"}, False),  # whose output has no layout of oneDNN's
    ],
)
def test_what_counts(name: str, fields: dict[str, Any], same: bool) -> None:
    assert (changed(name, **fields) == signature(GRAPH, AT["relu"])) == same


def test_a_signature_can_be_read() -> None:
    kind = str(TensorType(IMAGE))
    assert signature(GRAPH, AT["relu"]) == f"Activation({kind}~)->{kind}{{act_type=relu}}"
    assert signature(GRAPH, AT["flat"]) == f"Flatten({kind}~)->{TensorType((2, 192))}{{}}"
    assert signature(GRAPH, AT["relu"], frozenset()) == f"Activation({kind})->{kind}{{act_type=relu}}"


def test_gradients_have_the_attributes_of_their_operators() -> None:
    grad = GRAPH.nodes[AT["grad"]]
    assert forward_node(GRAPH, grad) is GRAPH.nodes[AT["relu"]]
    assert attributes(GRAPH, grad) == {"act_type": "relu"}
    assert forward_node(GRAPH, GRAPH.nodes[AT["relu"]]) is None
    assert attributes(GRAPH, GRAPH.nodes[AT["conv"]]) == {"kernel": "(1,1)"}


def test_layouts_begin_at_convolutions_and_are_handed_on() -> None:
    blocked = blocked_nodes(GRAPH)
    assert {GRAPH.nodes[number].name for number in blocked} == {"conv", "relu", "grad"}
    assert is_blocked(GRAPH, Entry(AT["relu"]), blocked)
    assert not is_blocked(GRAPH, Entry(AT["flat"]), blocked)
    half = replace(GRAPH.nodes[AT["relu"]], outputs=(TensorType(IMAGE, 2),))
    nodes = [half if node.name == "relu" else node for node in GRAPH.nodes]
    assert not is_blocked(replace(GRAPH, nodes=tuple(nodes)), Entry(AT["relu"]), blocked), "of float32 alone"


def test_what_takes_no_time() -> None:
    free = {node.name for node in GRAPH.nodes if is_free(GRAPH, node)}
    assert free == {"x", "weight", "flat", "head"}


@pytest.mark.parametrize(("op", "steps", "unrolled"), [
    ("FullyConnected", 4, True),
    ("FullyConnected", 3, False),  # a few layers that share a weight
    ("broadcast_mul", 4, False),
])  # fmt: skip
def test_steps_of_a_layer_find_its_weight_in_the_caches(op: str, steps: int, unrolled: bool) -> None:
    b = Builder()
    x, weight, other = b.variable("x", 4, 8), b.variable("weight", 8, 8), b.variable("other", 8, 8)
    for step in range(steps):
        x = b.forward(op, f"step{step}", (4, 8), x, weight)
    last = b.forward(op, "last", (4, 8), x, other)
    head = b.variable("head", 4, 8, forward=False)
    grad = b.backward(f"_backward_{op}", "grad", (4, 8), head, x, weight, control_deps=(x.node,))
    graph = b.graph([last, grad])
    names = {graph.nodes[number].name for number in unrolled_nodes(graph)}
    assert names == ({f"step{step}" for step in range(steps)} if unrolled else set())
    assert signature(graph, x.node).endswith("}*" if unrolled else "}")
    assert signature(graph, last.node).endswith("}")
    assert signature(graph, grad.node).endswith("}")
