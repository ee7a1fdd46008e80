"""Groups of nodes that cost the same, whatever their names and annotations are."""

from __future__ import annotations

from dataclasses import replace

from echo.estimators.groups import Group, groups_of
from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType
from tests.made_graphs import Builder

ROW = (4, 8)


def layers(count: int, shared: bool) -> TrainingGraph:
    """Products of one size behind each other, with one weight or with a weight each, and their gradients."""
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


def found(training: TrainingGraph) -> tuple[Group, Group]:
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


def test_what_is_computed_of_a_gradient_is_part_of_its_key() -> None:
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
