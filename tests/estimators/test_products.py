"""Gradients of products: which nodes they are, how many share one, and what they take by those that are known."""

from __future__ import annotations

import pytest

from echo.estimators.products import GRADIENT_OF_PRODUCT, gradient_of, parts, product_of
from echo.ir.training_graph import TrainingGraph
from tests.made_graphs import Builder

IMAGE = (2, 3, 8, 8)


def network() -> TrainingGraph:
    """Two convolutions with a relu between them; the gradient of the second one is in two nodes."""
    b = Builder()
    x, weight = b.variable("x", *IMAGE), b.variable("weight", 3, 3, 1, 1)
    first = b.forward("Convolution", "first", IMAGE, x, weight)
    relu = b.forward("Activation", "relu", IMAGE, first)
    second = b.forward("Convolution", "second", IMAGE, relu, weight)
    head = b.variable("head", *IMAGE, forward=False)
    late = b.backward("_backward_Convolution", "late", IMAGE, head, relu, weight, control_deps=(second.node,))
    b.backward("_backward_Convolution", "soon", IMAGE, head, relu, weight, control_deps=(second.node,))
    active = b.backward("_backward_Activation", "active", IMAGE, late, relu, control_deps=(relu.node,))
    last = b.backward("_backward_Convolution", "last", IMAGE, active, x, weight, control_deps=(first.node,))
    return b.graph([second, last])


GRAPH = network()
AT = {node.name: number for number, node in enumerate(GRAPH.nodes)}


def test_products_of_gradients() -> None:
    found = {name: product_of(GRAPH, number) for name, number in AT.items()}
    known = {"late": AT["second"], "soon": AT["second"], "last": AT["first"]}
    assert found == {**dict.fromkeys(AT), **known}


def test_nodes_that_share_a_gradient() -> None:
    assert parts(GRAPH) == {AT["late"]: 2, AT["soon"]: 2, AT["last"]: 1}


@pytest.mark.parametrize(
    ("size", "known", "multiple"),
    [(5.0, [], GRADIENT_OF_PRODUCT), (5.0, [(1.0, 1.5), (20.0, 3.0)], 3.0), (4.0, [(1.0, 1.5), (20.0, 3.0)], 1.5)],
)
def test_the_nearest_size_counts(size: float, known: list[tuple[float, float]], multiple: float) -> None:
    assert gradient_of(2e-3, size, known) == pytest.approx(multiple * 2e-3)
