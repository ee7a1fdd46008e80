"""What a planned graph asks of the calls that it serves."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.plans.options import Options
from echo.runtime.cached_choice import STOCK, CachedChoice
from echo.runtime.cached_op import PlannedCachedOp
from echo.runtime.error_policy import RaiseUnmetRequests

pytestmark = pytest.mark.usefixtures("cheap_planning")


def choice_of(symbol: mx.sym.Symbol, **options: object) -> CachedChoice:
    """The choice for one call in training, of arrays of ones."""
    policy = RaiseUnmetRequests(Options.of(max_overhead=None, **options))  # type: ignore[arg-type]
    op = PlannedCachedOp(symbol, [("static_alloc", True)], policy)
    shapes, _, _ = symbol.infer_shape(data=(64, 64))
    args = [mx.nd.ones(shape) for shape in shapes]
    for array in args:
        array.attach_grad()
    with mx.autograd.record():
        op(*args)
    (shape,) = op._shapes._shapes.values()
    return shape.choice


def deep(x: mx.sym.Symbol) -> mx.sym.Symbol:
    for _ in range(4):
        x = mx.sym.tanh(mx.sym.exp(mx.sym.sigmoid(mx.sym.FullyConnected(x, num_hidden=64))))
    return x


def test_mode_independent_choice_serves_every_mode() -> None:
    choice = choice_of(deep(mx.sym.var("data")), fuse=False)
    assert choice.graph is not None
    assert (choice.in_training, choice.fuses, choice.mode_dependent) == (False, False, frozenset())
    assert choice.key != STOCK.key


def test_masks_are_there_in_training_alone() -> None:
    x = mx.sym.var("data")
    for _ in range(4):
        x = mx.sym.tanh(mx.sym.Dropout(mx.sym.exp(mx.sym.FullyConnected(x, num_hidden=64))))
    assert choice_of(x, fuse=False).in_training


def test_fused_operators() -> None:
    example = mx.sym.softmax(mx.sym.FullyConnected(deep(mx.sym.var("data")), num_hidden=9))
    assert not choice_of(example, fuse=False).fuses
