"""Inference of a hybridized block that was planned in training."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import echo

pytestmark = pytest.mark.usefixtures("cheap_planning")


def outputs(planned: bool, **flags: Any) -> list[Any]:
    """Of a training pass and of inference after it, of layers whose maps oneDNN keeps in its own layout."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2DTranspose(32, 3, padding=1, in_channels=32), nn.Swish(), nn.BatchNorm(in_channels=32))
    net.initialize()
    random = np.random.RandomState(0)
    for name, parameter in sorted(net.collect_params().items()):
        values = random.normal(0, 0.3, parameter.shape)
        parameter.set_data(mx.nd.array(1 + np.abs(values) if name.endswith(("gamma", "var")) else values))
    net.hybridize(**flags)
    if planned:
        net = echo.optimize(net, fuse=False, max_overhead=None, recompute=["sigmoid", "_mul_scalar"])
    x = mx.nd.array(random.normal(0, 1, (2, 32, 8, 8)))
    with autograd.record():
        trained = net(x)
    trained.backward()
    mx.nd.waitall()
    found = [trained.asnumpy()] + [net(x).asnumpy() for _ in range(2)]
    if planned:
        assert any(mark.op == "sigmoid" for plan in net._cached_op.plans.values() for mark in plan.marks)
    return found


def test_inference_after_training_keeps_every_bit() -> None:
    for mine, its in zip(outputs(True), outputs(False)):
        assert mine.tobytes() == its.tobytes()
