"""Tests of `echo.passes.patterns.substitute`: substitute; steps."""

from __future__ import annotations

from typing import Sequence

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Entry, Graph, Node, fused_node
from echo.ir.op_spec import COPY_ATTRIBUTE
from echo.passes.patterns import substitute
from echo.passes.patterns.graph_view import Fusion, View, local
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


def test_substitution_without_fusions_gives_the_graph_back() -> None:
    graph = chain()
    assert applied(graph, [], copies=False) == graph


def test_unread_outputs_of_a_fused_operator_are_counted() -> None:
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


T = 3


def match(symbol: mx.sym.Symbol, name: str = "whole_echo_steps") -> Fusion | None:
    graph = graph_of(symbol)
    found = substitute.match(View(graph), next(k for k, node in enumerate(graph.nodes) if node.name == name))
    assert found is None or isinstance(found, Fusion)
    return found


def parts(axis: int, order: Sequence[int] = range(T), squeeze: bool = True, count: int = T) -> list[mx.sym.Symbol]:
    split = mx.sym.SliceChannel(mx.sym.var("x"), num_outputs=count, axis=axis, squeeze_axis=squeeze, name="split")
    return [split[index] for index in order]


def together(axis: int, pieces: Sequence[mx.sym.Symbol], name: str = "whole_echo_steps") -> mx.sym.Symbol:
    return mx.sym.stack(*pieces, axis=axis, num_args=len(pieces), name=name)


@pytest.mark.parametrize(
    ("split", "joined", "order", "ops"),
    [
        (0, 0, range(T), []),
        (1, 1, range(T), []),
        (1, 0, range(T), ["SwapAxis"]),
        (0, 1, range(T), ["SwapAxis"]),
        (0, 0, range(T)[::-1], ["reverse"]),
        (1, 0, range(T)[::-1], ["reverse", "SwapAxis"]),
    ],
)
def test_all_steps_of_an_array_are_that_array(split: int, joined: int, order: Sequence[int], ops: list[str]) -> None:
    found = match(together(joined, parts(split, order)))
    assert found is not None
    assert [node.op for node in found.nodes] == ops
    assert all(node.attrs["axis"] == f"({split},)" for node in found.nodes if node.op == "reverse")


def test_rows_of_steps_are_reshaped() -> None:
    found = match(mx.sym.Concat(*parts(0), dim=0, name="whole_echo_steps"))
    assert found is not None
    assert [(node.op, node.attrs) for node in found.nodes] == [("Reshape", {"shape": "(-3,-2)"})]


@pytest.mark.parametrize(
    "symbol",
    [
        together(0, parts(0, (0, 2, 1))),
        together(0, parts(0, (0, 1))),
        together(0, parts(0, squeeze=False)),
        together(2, parts(0)),
        together(0, [*parts(0)[:2], mx.sym.var("other")]),
        together(0, parts(0), "whole"),
    ],
    ids=["another order", "not all", "an axis too many", "another axis", "another array", "no fused layer"],
)
def test_steps_in_another_order_stay(symbol: mx.sym.Symbol) -> None:
    name = "whole" if "whole_output" in symbol.list_outputs() else "whole_echo_steps"
    assert match(symbol, name) is None


def both_ways(order: Sequence[int], other: Sequence[int] | None = None) -> mx.sym.Symbol:
    """Steps of two arrays side by side, as of a layer both ways."""
    names = ("forward", "backward")
    splits = [mx.sym.SliceChannel(mx.sym.var(name), num_outputs=T, axis=0, squeeze_axis=True, name=name + "_split")
              for name in names]  # fmt: skip
    pairs = zip(order, order if other is None else other)
    return together(0, [mx.sym.Concat(splits[0][one], splits[1][two], dim=1) for one, two in pairs])


@pytest.mark.parametrize(("order", "ops"), [(range(T), ["Concat"]), (range(T)[::-1], ["Concat", "reverse"])])
def test_steps_of_two_arrays_are_both_side_by_side(order: Sequence[int], ops: list[str]) -> None:
    found = match(both_ways(order))
    assert found is not None
    assert [node.op for node in found.nodes] == ops
    assert found.nodes[0].attrs["dim"] == "2"


def test_steps_of_two_arrays_in_two_orders_stay() -> None:
    assert match(both_ways(range(T), range(T)[::-1])) is None


def test_steps_joined_twice_are_joined_once() -> None:
    pieces = [mx.sym.var(f"x{step}") for step in range(T)]
    twice = mx.sym.Group([together(0, pieces, "a_echo_steps"), together(0, pieces, "b_echo_steps")])
    view = View(graph_of(twice))
    (found,) = substitute.equal(view)
    assert (view.graph.nodes[found.anchor].name, found.nodes) == ("b_echo_steps", ())
    assert [view.graph.nodes[entry.node].name for entry in found.outputs.values()] == ["a_echo_steps"]
    others = mx.sym.Group([together(0, pieces, "a_echo_steps"), together(0, pieces[::-1], "b_echo_steps"),
                           together(1, pieces, "c_echo_steps"), together(0, pieces, "d")])  # fmt: skip
    assert substitute.equal(View(graph_of(others))) == []
