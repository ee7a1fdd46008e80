"""Gradients of products: which nodes they are, what they compute, and what they take by those that are known."""

from __future__ import annotations

import pytest

from echo.estimators.products import (
    GRADIENT_OF_PRODUCT,
    gradient_of,
    is_added_apart,
    product_of,
    read_outputs,
    share_of,
)
from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType
from tests.made_graphs import Builder

IMAGE, WEIGHT = (2, 3, 8, 8), (3, 3, 1, 1)


def network() -> TrainingGraph:
    """Two convolutions with a relu between them; the gradient of the second one is in two nodes."""
    b = Builder()
    x, weight = b.variable("x", *IMAGE), b.variable("weight", *WEIGHT)
    first = b.forward("Convolution", "first", IMAGE, x, weight)
    relu = b.forward("Activation", "relu", IMAGE, first)
    second = b.forward("Convolution", "second", IMAGE, relu, weight)
    head = b.variable("head", *IMAGE, forward=False)

    def gradient(name: str, of: Entry, up: Entry, data: Entry) -> Entry:
        outputs = TensorType(IMAGE), TensorType(WEIGHT)
        b.backward("_backward_Convolution", name, IMAGE, up, data, weight, control_deps=(of.node,))
        b.nodes[-1] = b.nodes[-1].having(outputs=outputs)
        return Entry(len(b.nodes) - 1)

    soon, late = (gradient(name, second, head, relu) for name in ("soon", "late"))
    active = b.backward("_backward_Activation", "active", IMAGE, late, relu, control_deps=(relu.node,))
    last = gradient("last", first, active, x)
    nobody = gradient("nobody", first, active, x)
    assert b.nodes[nobody.node].name == "nobody"
    return b.graph([second, Entry(soon.node, 1), last, Entry(last.node, 1)])


GRAPH = network()
AT = {node.name: number for number, node in enumerate(GRAPH.nodes)}


def test_products_of_gradients() -> None:
    found = {name: product_of(GRAPH, number) for name, number in AT.items()}
    known = {"late": AT["second"], "soon": AT["second"], "last": AT["first"], "nobody": AT["first"]}
    assert found == {**dict.fromkeys(AT), **known}


def test_what_is_read_is_computed() -> None:
    read = read_outputs(GRAPH)
    assert {GRAPH.nodes[number].name: outputs for number, outputs in read.items()} == {
        "soon": (1,), "late": (0,), "last": (0, 1), "nobody": (0, 1),
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
