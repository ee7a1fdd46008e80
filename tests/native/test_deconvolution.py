"""The gradient of a transposed convolution whose weight several layers share."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

_TRAIN = """
import json, sys
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
import echo

layer = nn.Conv2DTranspose(16, 3, padding=1, in_channels=16)
net = nn.HybridSequential()
net.add(layer, layer, nn.Activation("tanh"), layer)
layer.initialize(mx.init.Constant(0.01))
options = json.loads(sys.argv[1])
net.hybridize(**options["flags"])
if options["echo"]:
    echo.optimize(net, **options["echo"])
data = mx.nd.arange(2 * 16 * 5 * 5).reshape((2, 16, 5, 5)) / 800
for _ in range(2):
    with autograd.record():
        loss = net(data).square().sum()
    loss.backward()
print(json.dumps([each.grad().asnumpy().ravel().tolist() for each in (layer.weight, layer.bias)]))
"""


def gradients(onednn: bool, **options: object) -> list[np.ndarray]:
    command = [sys.executable, "-W", "ignore", "-c", _TRAIN, json.dumps(options)]
    environment = {**os.environ, "MXNET_MKLDNN_ENABLED": str(int(onednn))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [np.array(each) for each in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def expected() -> list[np.ndarray]:
    return gradients(onednn=False, flags={}, echo=None)


@pytest.mark.parametrize("echo", [{"exact": True}, {"policy": "none"}], ids=["search", "none"])
@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}], ids=["dynamic", "static alloc"])
def test_shared_weights_have_gradients_where_stock_mxnet_ends_the_process(
    flags: dict[str, bool], echo: dict[str, object], expected: list[np.ndarray]
) -> None:
    for mine, its in zip(gradients(onednn=True, flags=flags, echo=echo), expected):
        np.testing.assert_allclose(mine, its, rtol=0, atol=2e-6 * np.abs(its).max())
