"""A small network that is light but for its products, and how it is trained."""

from __future__ import annotations

from typing import Any

import mxnet as mx

import echo
from tests.support.training import assert_alive, assert_same, bind, random_arrays, train

Symbol = mx.sym.Symbol
SHAPES = {"data": (16, 20), "label": (16,)}


def network(layers: int = 3) -> Symbol:
    with mx.name.NameManager():
        hidden = mx.sym.var("data")
        for layer in range(layers):
            hidden = mx.sym.FullyConnected(hidden, num_hidden=64, name=f"fc{layer}")
            hidden = mx.sym.tanh(mx.sym.LayerNorm(hidden, name=f"norm{layer}"), name=f"tanh{layer}")
            hidden = mx.sym.sigmoid(hidden, name=f"gate{layer}") * hidden
        return mx.sym.SoftmaxOutput(
            mx.sym.FullyConnected(hidden, num_hidden=10, name="scores"), mx.sym.var("label"), name="softmax"
        )


def trained(symbol: Symbol, shapes: dict[str, tuple[int, ...]], **limits: int) -> dict[str, Any]:
    values = random_arrays(symbol, shapes, limits=limits)
    requests = {name: "null" if name in shapes else "write" for name in symbol.list_arguments()}
    return train(bind(symbol, values, requests))


def check_identical(symbol: Symbol, shapes: dict[str, tuple[int, ...]], **limits: int) -> echo.Plan:
    """Optimizes without a bound on time, trains, compares; the plan."""
    optimized = echo.optimize(symbol, max_overhead=None, fuse=False)
    expected = trained(symbol, shapes, **limits)
    assert_alive(expected)
    assert_same(trained(optimized, shapes, **limits), expected)
    assert len(optimized.plans) == 1
    return optimized.plans[0]
