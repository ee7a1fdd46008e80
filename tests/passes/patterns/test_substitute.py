"""Nodes in the place of others: what reads them, in which order, and cycles that are refused."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Entry, Graph, Node, fused_node
from echo.ir.op_spec import COPY_ATTRIBUTE
from echo.passes.patterns.graph_view import Fusion, local
from echo.passes.patterns.substitute import applied


def chain() -> Graph:
    """x -> a -> b -> c."""
    x = mx.sym.var("x")
    return graph_of(mx.sym.Group([mx.sym.exp(mx.sym.sin(mx.sym.tanh(x, name="a"), name="b"), name="c")]))


def test_a_cycle_is_refused() -> None:
    """One operator for a and c would read what is computed from its own output."""
    graph = chain()
    a, b, c = (next(k for k, node in enumerate(graph.nodes) if node.name == name) for name in "abc")
    node = fused_node("lstm_cell", "both", (Entry(0), Entry(b)))
    around = Fusion("both", c, (node,), {Entry(a): local(0, 0), Entry(c): local(0, 1)}, frozenset({a, c}), {}, "")
    assert applied(graph, [around], copies=False) is None
    alone = Fusion("one", c, (Node("exp", "new", (Entry(b),)),), {Entry(c): local(0)}, frozenset({c}), {}, "")
    made = applied(graph, [alone], copies=False)
    assert made is not None
    assert [node.name for node in made.nodes] == ["x", "a", "b", "new"]


def test_nothing_to_put_in_gives_the_graph_in_mxnets_order() -> None:
    graph = chain()
    assert applied(graph, [], copies=False) == graph


def test_other_outputs_of_a_fused_operator_are_counted() -> None:
    graph = chain()
    nodes = (Node("SliceChannel", "new", (Entry(0),), attrs={"num_outputs": "3"}),)
    fusion = Fusion("one", 3, nodes, {Entry(3): local(0, 2)}, frozenset({1, 2, 3}), {}, "")
    made = applied(graph, [fusion], copies=False)
    assert made is not None
    assert [node.name for node in made.nodes] == ["x", "new"]
    assert made.heads == (Entry(1, 2),)
    assert made.row_ptr == (0, 1, 4)


def test_one_fusion_reads_what_another_made() -> None:
    graph = chain()
    first = Fusion("one", 1, (Node("exp", "first", (Entry(0),)),), {Entry(1): local(0)}, frozenset({1}), {}, "")
    second = Fusion("two", 3, (Node("exp", "second", (Entry(1),)), Node("exp", "third", (local(0),))),
                    {Entry(3): local(1)}, frozenset({2, 3}), {}, "")  # fmt: skip
    made = applied(graph, [first, second], copies=False)
    assert made is not None
    assert [(node.name, [entry.node for entry in node.inputs]) for node in made.nodes] == [
        ("x", []), ("first", [0]), ("second", [1]), ("third", [2]),
    ]  # fmt: skip


@pytest.mark.parametrize("copies", [False, True])
def test_operators_that_overwrite_have_their_gradients_copied(copies: bool) -> None:
    graph = chain()
    nodes = (fused_node("relu", "fused", (Entry(0),)), Node("exp", "plain", (local(0),)))
    fusion = Fusion("one", 3, nodes, {Entry(3): local(1)}, frozenset({1, 2, 3}), {}, "")
    made = applied(graph, [fusion], copies)
    assert made is not None
    found = {node.name: node.attrs.get(COPY_ATTRIBUTE) for node in made.nodes}
    assert found == {"x": None, "fused": "all" if copies else "sums", "plain": None}
