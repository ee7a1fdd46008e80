"""Steps that are split apart and put together again: one array, where a fused layer is beside them."""

from __future__ import annotations

from typing import Sequence

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.passes.patterns import steps
from echo.passes.patterns.graph_view import Fusion, View

T = 3


def match(symbol: mx.sym.Symbol, name: str = "whole_echo_steps") -> Fusion | None:
    graph = graph_of(symbol)
    found = steps.match(View(graph), next(k for k, node in enumerate(graph.nodes) if node.name == name))
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
def test_other_steps_stay(symbol: mx.sym.Symbol) -> None:
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


def test_what_is_put_together_twice_is_put_together_once() -> None:
    pieces = [mx.sym.var(f"x{step}") for step in range(T)]
    twice = mx.sym.Group([together(0, pieces, "a_echo_steps"), together(0, pieces, "b_echo_steps")])
    view = View(graph_of(twice))
    (found,) = steps.equal(view)
    assert (view.graph.nodes[found.anchor].name, found.nodes) == ("b_echo_steps", ())
    assert [view.graph.nodes[entry.node].name for entry in found.outputs.values()] == ["a_echo_steps"]
    others = mx.sym.Group([together(0, pieces, "a_echo_steps"), together(0, pieces[::-1], "b_echo_steps"),
                           together(1, pieces, "c_echo_steps"), together(0, pieces, "d")])  # fmt: skip
    assert steps.equal(View(graph_of(others))) == []
