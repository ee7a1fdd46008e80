"""Groups of nodes that cost the same, whatever their names and annotations are."""

from __future__ import annotations

from echo.estimators.groups import Group, groups_of
from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
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
