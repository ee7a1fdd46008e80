"""A convolutional network with everything that has its own ways, and how it is bound without a bound on time."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from echo.runtime.bind import OptimizedSymbol

Symbol = mx.sym.Symbol
LOW_BOUND: dict[str, Any] = {"max_overhead": None, "fuse": False}


def network(batch_norm: bool = True, dropout: bool = True) -> Symbol:
    """A convolutional network with everything that has its own ways: aux states, random masks, several readers."""
    with mx.name.NameManager():
        return _network(batch_norm, dropout)


def _network(batch_norm: bool, dropout: bool) -> Symbol:
    hidden = mx.sym.var("data")
    for layer in range(3):
        hidden = mx.sym.Convolution(hidden, kernel=(3, 3), pad=(1, 1), num_filter=16, name=f"conv{layer}")
        if batch_norm:
            hidden = mx.sym.BatchNorm(hidden, fix_gamma=False, name=f"norm{layer}")
        active = mx.sym.Activation(hidden, act_type="relu", name=f"relu{layer}")
        hidden = mx.sym.tanh(active, name=f"tanh{layer}") * mx.sym.sigmoid(active, name=f"sigmoid{layer}")
    hidden = mx.sym.Flatten(mx.sym.Pooling(hidden, kernel=(2, 2), stride=(2, 2), pool_type="avg", name="pool"))
    if dropout:
        hidden = mx.sym.Dropout(hidden, p=0.4, name="drop")
    scores = mx.sym.FullyConnected(mx.sym.LayerNorm(hidden, name="layer"), num_hidden=10, name="scores")
    return mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="softmax")


BATCH = 8
SHAPES = {"data": (BATCH, 4, 10, 10), "label": (BATCH,)}
LIMITS = {"label": 10}
GRADIENTS = {name: "null" if name in SHAPES else "write" for name in network().list_arguments()}


def was_planned(symbol: OptimizedSymbol, binds: int = 1) -> bool:
    return len(symbol.plans) == binds and len(symbol.plans[-1].recomputed) > 3
