"""Gluon blocks of all forms, how they are made again, and one step of training."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import echo
from echo.runtime.cached_op import PlannedCachedOp

BATCH, FEATURES = 8, 12


def net(*more: gluon.HybridBlock) -> nn.HybridSequential:
    block = nn.HybridSequential(prefix="net_")
    with block.name_scope():
        for _ in range(3):
            block.add(nn.Dense(24), nn.Activation("tanh"), nn.BatchNorm(), nn.Activation("sigmoid"), *more)
        block.add(nn.Dense(5))
    return block


class Cells(gluon.HybridBlock):
    """LSTM cells: their slices keep state, and run once."""

    def __init__(self) -> None:
        super().__init__(prefix="cells_")
        with self.name_scope():
            self.cell, self.out = rnn.LSTMCell(16), nn.Dense(4)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        steps = F.reshape(data, shape=(0, 4, -1))
        hidden = self.cell.unroll(4, steps, layout="NTC", merge_outputs=True)[0]
        return self.out(F.concat(*F.split_v2(F.split(hidden, num_outputs=1, axis=2), 2, axis=2), dim=2))


class Steps(gluon.HybridBlock):
    """One layer many times: MXNet adds the gradients of its weight up in one array."""

    def __init__(self) -> None:
        super().__init__(prefix="steps_")
        with self.name_scope():
            self.layer, self.out = nn.Dense(FEATURES, in_units=FEATURES), nn.Dense(4)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        for _ in range(12):
            data = F.sigmoid(F.tanh(self.layer(data)))
        return self.out(data)


class Mirrored(Cells):
    """MXNet's executors would recompute all of it, its CachedOp recomputes nothing."""

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        with mx.AttrScope(__force_mirroring__="1"):
            return super().hybrid_forward(F, data)


BLOCKS: dict[str, Callable[[], gluon.HybridBlock]] = {
    "layers": lambda: net(nn.Dropout(0.3)), "cells": Cells, "steps": Steps, "mirrored": Mirrored,
}  # fmt: skip


# Whether there is something to fuse, and it is
FUSED = [
    ("layers", False),
    ("cells", False),
    ("cells", True),
    ("steps", False),
    ("mirrored", False),
    ("mirrored", True),
]


def made(build: Callable[[], gluon.HybridBlock], on: bool, fuse: bool = False, **flags: Any) -> gluon.HybridBlock:
    with mx.name.NameManager():
        mx.random.seed(3)
        block = build()
        block.initialize(mx.init.Xavier())
        block.hybridize(**flags)
        return echo.optimize(block, max_overhead=None, fuse=fuse) if on else block


def inputs(size: int = BATCH) -> mx.nd.NDArray:
    data = mx.nd.array(np.random.RandomState(size).normal(0, 1, (size, FEATURES)))
    data.attach_grad()
    return data


def step(block: gluon.HybridBlock, data: mx.nd.NDArray, seen: dict[str, Any] | None = None) -> mx.nd.NDArray:
    with autograd.record():
        loss = block(data).square().sum()
    loss.backward()
    mx.nd.waitall()
    if seen is not None:
        seen[f"{len(seen)} loss"], seen[f"{len(seen)} gradient"] = loss.asnumpy(), data.grad.asnumpy()
    return loss


def recomputed(block: gluon.HybridBlock) -> int:
    assert isinstance(block._cached_op, PlannedCachedOp)
    return sum(plan.recomputed_nodes for plan in block._cached_op.plans.values())


def fused(block: gluon.HybridBlock) -> int:
    return sum(len(plan.fused) for plan in block._cached_op.plans.values())
