"""Options of ``verify``, and a block of sines, and the files that remain if a plan is wrong."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import echo

OPTIONS = {"fuse": False, "max_overhead": None, "verify": True}
FLAGS: dict[str, dict[str, bool]] = {
    "dynamic": {},
    "static alloc": {"static_alloc": True},
    "static": {"static_alloc": True, "static_shape": True},
}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def folders() -> list[Path]:
    return sorted(Path.cwd().glob("echo-verify-*"))


class Sine(nn.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.sin(x)


def made(on: bool, flags: dict[str, bool], **options: Any) -> nn.HybridSequential:
    with mx.name.NameManager():
        mx.random.seed(3)
        block = nn.HybridSequential(prefix="net_")
        with block.name_scope():
            for _ in range(3):
                block.add(nn.Dense(24), nn.BatchNorm(), Sine(), nn.Activation("tanh"), nn.Activation("sigmoid"))
                block.add(nn.Dropout(0.3))
            block.add(nn.Dense(5))
        block.initialize(mx.init.Xavier())
        block.hybridize(**flags)
        return echo.optimize(block, **{**OPTIONS, **options}) if on else block


def inputs(seed: int = 0) -> mx.nd.NDArray:
    return mx.nd.array(np.random.RandomState(seed).normal(0, 1, (8, 12)))
