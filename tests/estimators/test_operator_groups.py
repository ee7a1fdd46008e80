"""Floating-point operations of heavy operators, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echo.estimators.operator_groups import (
    GRADIENT_OF_PRODUCT,
    OperatorGroup,
    attributes,
    blocked_nodes,
    forward_node,
    gradient_of,
    groups_of,
    is_added_apart,
    is_blocked,
    is_free,
    product_of,
    read_outputs,
    share_of,
    signature,
    unrolled_nodes,
    work,
)
from echo.ir.graph import PREFIX, VARIABLE, Entry
from echo.ir.ops import ops_with
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from tests.support.made_graphs import Builder

Shape = tuple[int, ...]


def graph(op: str, inputs: list[Shape], output: Shape, gradient: bool) -> TrainingGraph:
    nodes = [TrainingNode(VARIABLE, f"x{number}", (TensorType(shape),)) for number, shape in enumerate(inputs)]
    entries = tuple(map(Entry, range(len(inputs))))
    nodes.append(TrainingNode(op, "op", (TensorType(output),), entries))
    if gradient:
        types = tuple(map(TensorType, inputs))
        deps = (len(inputs),)
        nodes.append(TrainingNode(f"_backward_{op}", "gradient", types, entries, deps, forward=False))
    return TrainingGraph(tuple(nodes), (Entry(len(nodes) - 1),), 0 if gradient else 1, 0)


COUNTED: list[tuple[str, list[Shape], Shape, int]] = [
    ("FullyConnected", [(8, 32), (16, 32), (16,)], (8, 16), 8 * 16 * 32),
    ("Convolution", [(2, 3, 8, 8), (16, 3, 3, 3)], (2, 16, 8, 8), 2 * 16 * 8 * 8 * 3 * 3 * 3),
    ("Deconvolution", [(2, 16, 8, 8), (16, 3, 3, 3)], (2, 3, 8, 8), 2 * 16 * 8 * 8 * 3 * 3 * 3),
    ("batch_dot", [(4, 8, 32), (4, 32, 16)], (4, 8, 16), 4 * 8 * 32 * 16),
    ("dot", [(8, 32), (32, 16)], (8, 16), 8 * 32 * 16),
    ("_echo_attention", [(4, 10, 32), (4, 128, 32), (4, 128, 64)], (4, 10, 64), 4 * 10 * 128 * (32 + 64)),
    ("_echo_softmax_output", [(8, 32), (100, 32), (100,), (8,)], (8, 100), 8 * 32 * 100),
    ("_echo_linear_cross_entropy", [(8, 32), (100, 32), (100,), (8,)], (8,), 8 * 32 * 100),
    ("_echo_gru_layer", [(5, 8, 16), (96, 16), (96,), (96, 32)], (5, 8, 32), 5 * 8 * 96 * (16 + 32)),
    ("_echo_rnn_layer", [(5, 8, 16), (32, 16), (32,), (32, 32)], (5, 8, 32), 5 * 8 * 32 * (16 + 32)),
    ("_echo_lstm_layer", [(5, 8, 16), (128, 16), (128,), (128, 32)], (5, 8, 32), 5 * 8 * 128 * (16 + 32)),
]


@pytest.mark.parametrize(("op", "inputs", "output", "expected"), COUNTED)
def test_flops_of_gradients_are_twice_those_of_products(
    op: str, inputs: list[Shape], output: Shape, expected: int
) -> None:
    """Two for each product and its sum; twice as many in the gradient, which is two such products."""
    forward, backward = graph(op, inputs, output, False), graph(op, inputs, output, True)
    assert work(forward, forward.nodes[-1]).flops == pytest.approx(2 * expected)
    assert work(backward, backward.nodes[-1]).flops == pytest.approx(4 * expected)


def test_each_heavy_fused_operator_is_counted() -> None:
    fused = ops_with(lambda spec: spec.cost.heavy and spec.gradient.gradient_reads is not None)
    assert fused == {op for op, *_ in COUNTED if op.startswith(PREFIX)}


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
def test_signature_changes_with_fields_that_cost_time(name: str, fields: dict[str, Any], same: bool) -> None:
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


def test_variables_views_and_heads_are_free() -> None:
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


PRODUCTS_IMAGE, WEIGHT = (2, 3, 8, 8), (3, 3, 1, 1)


def products_network() -> TrainingGraph:
    """Two convolutions with a relu between them; the gradient of the second one is in two nodes."""
    b = Builder()
    x, weight = b.variable("x", *PRODUCTS_IMAGE), b.variable("weight", *WEIGHT)
    first = b.forward("Convolution", "first", PRODUCTS_IMAGE, x, weight)
    relu = b.forward("Activation", "relu", PRODUCTS_IMAGE, first)
    second = b.forward("Convolution", "second", PRODUCTS_IMAGE, relu, weight)
    head = b.variable("head", *PRODUCTS_IMAGE, forward=False)

    def gradient(name: str, of: Entry, up: Entry, data: Entry) -> Entry:
        outputs = TensorType(PRODUCTS_IMAGE), TensorType(WEIGHT)
        b.backward("_backward_Convolution", name, PRODUCTS_IMAGE, up, data, weight, control_deps=(of.node,))
        b.nodes[-1] = b.nodes[-1].having(outputs=outputs)
        return Entry(len(b.nodes) - 1)

    soon, late = (gradient(name, second, head, relu) for name in ("soon", "late"))
    active = b.backward("_backward_Activation", "active", PRODUCTS_IMAGE, late, relu, control_deps=(relu.node,))
    last = gradient("last", first, active, x)
    unread = gradient("unread", first, active, x)
    assert b.nodes[unread.node].name == "unread"
    return b.graph([second, Entry(soon.node, 1), last, Entry(last.node, 1)])


PRODUCTS_GRAPH = products_network()
PRODUCTS_AT = {node.name: number for number, node in enumerate(PRODUCTS_GRAPH.nodes)}


def test_products_of_gradients() -> None:
    found = {name: product_of(PRODUCTS_GRAPH, number) for name, number in PRODUCTS_AT.items()}
    known = {
        "late": PRODUCTS_AT["second"],
        "soon": PRODUCTS_AT["second"],
        "last": PRODUCTS_AT["first"],
        "unread": PRODUCTS_AT["first"],
    }
    assert found == {**dict.fromkeys(PRODUCTS_AT), **known}


def test_read_outputs_of_gradients_are_listed() -> None:
    read = read_outputs(PRODUCTS_GRAPH)
    assert {PRODUCTS_GRAPH.nodes[number].name: outputs for number, outputs in read.items()} == {
        "soon": (1,), "late": (0,), "last": (0, 1), "unread": (0, 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("op", "read", "share"),
    [
        ("Convolution", (0, 1, 2), 1.0),
        ("FullyConnected", (1, 2), 0.5),
        ("FullyConnected", (2,), 0.5),
        ("_echo_attention", (0,), 1.0),
    ],
)
def test_the_data_and_the_weight_are_half_of_the_work_each(op: str, read: tuple[int, ...], share: float) -> None:
    assert share_of(op, read) == share


@pytest.mark.parametrize(
    ("size", "known", "multiple"),
    [(5.0, [], GRADIENT_OF_PRODUCT), (5.0, [(1.0, 1.5), (20.0, 3.0)], 3.0), (4.0, [(1.0, 1.5), (20.0, 3.0)], 1.5)],
)
def test_the_nearest_size_counts(size: float, known: list[tuple[float, float]], multiple: float) -> None:
    assert gradient_of(2e-3, size, known) == pytest.approx(multiple * 2e-3)
    assert gradient_of(2e-3, size, known, 0.5) == pytest.approx((multiple if known else multiple / 2) * 2e-3)


@pytest.mark.parametrize(
    ("op", "index", "apart"),
    [("FullyConnected", 1, True), ("FullyConnected", 0, False), ("dot", 1, False), ("LayerNorm", 1, False)],
)
def test_onednn_adds_up_gradients_of_weights_in_a_pass_of_its_own(op: str, index: int, apart: bool) -> None:
    b = Builder()
    x, weight, so_far = b.variable("x", 8, 8), b.variable("weight", 8, 8), b.variable("sum", 8, 8, forward=False)
    product = b.forward(op, "product", (8, 8), x, weight)
    gradient = b.backward(f"_backward_{op}", "gradient", (8, 8), x, x, weight, control_deps=(product.node,))
    b.nodes[-1] = b.nodes[-1].having(outputs=(TensorType((8, 8)), TensorType((8, 8))))
    total = b.backward("_grad_add", "total", (8, 8), so_far, Entry(gradient.node, index))
    assert is_added_apart(b.graph([total]), total.node) is apart
    assert not is_added_apart(b.graph([total]), gradient.node)


ROW = (4, 8)


def layers(count: int, shared: bool) -> TrainingGraph:
    """Products of one size after each other, with one weight or with a weight each, and their gradients."""
    b = Builder()
    weight, x = b.variable("weight", 8, 8), b.variable("x", *ROW)
    made: list[tuple[Entry, Entry, Entry]] = []
    for number in range(count):
        if not shared:
            weight = b.variable(f"weight{number}", 8, 8)
        attrs = {"num_hidden": "8", "__layer__": str(number)}
        made.append((b.forward("FullyConnected", f"product{number}", ROW, x, weight, attrs=attrs), x, weight))
        x = b.forward("Reshape", f"view{number}", ROW, made[-1][0], inplace=((0, 0, True),))
    up = b.variable("head", *ROW, forward=False)
    for product, data, weight in reversed(made):
        name = f"{b.nodes[product.node].name}_backward"
        up = b.backward("_backward_FullyConnected", name, ROW, up, data, weight, control_deps=(product.node,))
    return b.graph([x, up])


def found(training: TrainingGraph) -> tuple[OperatorGroup, OperatorGroup]:
    groups, group_of = groups_of(training)
    for node, at in zip(training.nodes, group_of):
        assert (at is None) == (node.is_variable or node.op == "Reshape"), "views and variables run nothing"
        assert at is None or groups[at].key.startswith(f"{node.op}(")
    product, gradient = groups
    return product, gradient


def test_equal_nodes_are_one_group() -> None:
    training = layers(3, shared=False)
    product, gradient = found(training)
    assert (product.count, gradient.count) == (3, 3)
    assert product.product is None
    assert gradient.product is not None
    assert training.nodes[gradient.product].name == "product2", "whose gradient comes first"
    assert training.nodes[product.number].name == "product0"
    assert (product.light, product.draws) == (False, False)
    assert product.size == 2 * 4 * 8 * 8


def test_products_of_unrolled_layers_are_a_family_of_their_own() -> None:
    (apart, gradient), (unrolled, other) = found(layers(5, shared=False)), found(layers(5, shared=True))
    assert unrolled.key == f"{apart.key}*"
    assert unrolled.family != apart.family
    assert (gradient.key, gradient.family) == (other.key, other.family)


def test_computed_outputs_are_part_of_a_gradients_key() -> None:
    training = layers(3, shared=False)
    gradient = next(number for number, node in enumerate(training.nodes) if node.op.startswith("_"))
    nodes = list(training.nodes)
    for number, node in enumerate(nodes):
        if node.op == "_backward_FullyConnected":
            nodes[number] = node.having(outputs=(*node.outputs, TensorType((8, 8))))
    outputs = (*training.outputs, *(Entry(number, 1) for number in range(gradient, len(nodes) - 1)))
    groups, group_of = groups_of(replace(training, nodes=tuple(nodes), outputs=outputs))
    first, last = (groups[at or 0] for at in (group_of[gradient], group_of[-1]))
    assert (first.read, first.count, last.read, last.count) == ((0, 1), 2, (0,), 1)
    assert last.key == f"{first.key}[0]"
    assert last.family != first.family
