"""Trains hybridized blocks without ``static_alloc`` on the fake GPU, with and without plans: dynamic_blocks.py

Prints, a line of JSON a model, the bytes that are planned and the most bytes of the device that a step takes, each
without and with echo. Of MXNet's pool and engine a process has one: the environment chooses them.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Callable

import mxnet as mx

import echo
from tests.fake_gpu import device

GPU = mx.gpu(0)
STEPS = 6
OPTIONS: dict[str, Any] = {"max_overhead": None, "fuse": False}


class _Cells(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Two LSTM cells over 20 steps of sequences (batch, steps, features), a layer over all that they give, a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = mx.gluon.rnn.HybridSequentialRNNCell()
        for _ in range(2):
            self.cells.add(mx.gluon.rnn.LSTMCell(256))
        self.top = mx.gluon.nn.Dense(1000, flatten=False)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        outputs, _ = self.cells.unroll(20, data, layout="NTC", merge_outputs=True)
        return F.sum(F.log_softmax(self.top(outputs)))  # large arrays outside of the block are in no plan


_VISION = mx.gluon.model_zoo.vision
BLOCKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "resnet18_v2": (lambda: _VISION.resnet18_v2(classes=10), (16, 3, 128, 128)),
    "densenet121": (lambda: _VISION.densenet121(classes=10), (2, 3, 224, 224)),
    "vgg11_bn": (lambda: _VISION.vgg11_bn(classes=10), (16, 3, 64, 64)),
    "cells": (_Cells, (64, 20, 256)),
}


def seen(name: str, plans: list[echo.Plan] | None) -> int:
    """The most bytes of the device that a step of a model takes, without those of before.

    MXNet's usual engine frees arrays on another thread, later in some steps than in others: the least of `STEPS`.
    """
    build, shape = BLOCKS[name]
    before, peaks = device.idle(GPU), []
    block = build()
    block.initialize(ctx=GPU)
    block.hybridize()
    data = mx.nd.zeros(shape, ctx=GPU)
    with contextlib.nullcontext() if plans is None else echo.enable(strict=True, **OPTIONS):
        for _ in range(STEPS):
            device.reset()
            with mx.autograd.record():
                loss = block(data).sum()
            loss.backward()
            mx.nd.waitall()
            peaks.append(device.peak())
    if plans is not None:
        plans.extend(block._cached_op.plans.values())
    return min(peaks[1:]) - before  # the first step makes gradients and plans


def main() -> None:
    """One line for each model."""
    with device.without_kernels():
        for name in BLOCKS:
            plans: list[echo.Plan] = []
            seen(name, None)  # the memory that a process takes once
            stock, planned = seen(name, None), seen(name, plans)
            row = {
                "model": name,
                "planned": [plans[0].before.planned, plans[0].after.planned],
                "seen": [stock, planned],
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
