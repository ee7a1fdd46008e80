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
