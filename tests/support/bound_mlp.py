"""A small network for the scenarios of a program that binds symbols."""

from __future__ import annotations

import mxnet as mx

BATCH, FEATURES, CLASSES, STEPS = 16, 12, 5, 3


def network(dropout: float = 0.3) -> mx.sym.Symbol:
    return mx.sym.SoftmaxOutput(body(dropout), mx.sym.var("softmax_label"), name="softmax")


def body(dropout: float = 0.3, data: mx.sym.Symbol | None = None, prefix: str = "") -> mx.sym.Symbol:
    hidden = mx.sym.var("data") if data is None else data
    for i in range(3):
        hidden = mx.sym.FullyConnected(hidden, num_hidden=24, name=f"{prefix}fc{i}")
        hidden = mx.sym.BatchNorm(hidden, name=f"{prefix}bn{i}", fix_gamma=False)
        hidden = mx.sym.Activation(mx.sym.tanh(hidden), act_type="sigmoid", name=f"{prefix}act{i}")
        hidden = mx.sym.Dropout(hidden, p=dropout, name=f"{prefix}drop{i}")
    return mx.sym.FullyConnected(hidden, num_hidden=CLASSES, name=f"{prefix}out")
