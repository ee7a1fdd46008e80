"""Scores of dot attention: scales, masks, and the arrays that masks repeat; `test_attention` has what is found."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.passes.patterns.attention_scores import Scores, match
from echo.passes.patterns.graph_view import View

Symbol = mx.sym.Symbol
Q, K = mx.sym.var("q"), mx.sym.var("k")
MASK = mx.sym.BlockGrad(mx.sym.var("mask"))


def product() -> Symbol:
    return mx.sym.batch_dot(Q, K, transpose_b=True)


def matched(symbol: Symbol) -> tuple[View, Scores]:
    graph = graph_of(symbol)
    view = View(graph)
    found = match(view, graph.heads[0], None)
    assert isinstance(found, Scores), found
    return view, found


def test_scales_multiply() -> None:
    _, found = matched((product() * 0.5) / 4)
    assert found.scale == pytest.approx(0.125)
    assert not found.masks


@pytest.mark.parametrize(("repeat", "axis"), [
    (lambda mask: mask, 1),
    (lambda mask: mx.sym.repeat(mask, repeats=3, axis=0), 1),
    (lambda mask: mx.sym.tile(mask, reps=(3, 1, 1)), 0),
    (lambda mask: mx.sym.broadcast_axis(mask, axis=1, size=5), 1),
])  # fmt: skip
def test_a_mask_that_is_repeated_is_read_where_it_is_not(repeat: object, axis: int) -> None:
    view, found = matched(mx.sym.broadcast_add(product(), repeat(MASK)))  # type: ignore[operator]
    (mask,) = found.masks
    assert view.node(mask.source).op == "BlockGrad"
    assert (mask.axis, mask.fill) == (axis, None)


@pytest.mark.parametrize(("fill", "value"), [
    (lambda x: mx.sym.ones_like(x) * -1e9, -1e9), (lambda x: mx.sym.zeros_like(x), 0.0),
    (lambda x: mx.sym.ones_like(x) - 3 + 5, None),
])  # fmt: skip
def test_masked_scores_take_a_constant_fill_alone(fill: object, value: float | None) -> None:
    scores = product()
    graph = graph_of(mx.sym.where(MASK, scores, fill(scores)))  # type: ignore[operator]
    found = match(View(graph), graph.heads[0], None)
    if value is None:
        assert found == "attention whose scores are selected from arrays"
    else:
        assert isinstance(found, Scores)
        assert found.masks[0].fill == value


def test_no_product_no_scores() -> None:
    graph = graph_of(mx.sym.tanh(Q))
    assert match(View(graph), graph.heads[0], None) is None
