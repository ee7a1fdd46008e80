"""MXNet's lines on storage types: with echo they are those of the user's own graph, no more and no less."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import mxnet as mx
h = mx.sym.var("data")
for i in range(3):
    h = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.exp(mx.sym.tanh(h)), num_hidden=64), act_type="tanh")
executor = mx.sym.SoftmaxOutput(h, name="softmax").simple_bind(mx.cpu(), data=(64, 50))
executor.forward(is_train=True); executor.backward(); mx.nd.waitall()
print(type(executor).__name__)
"""

GLUON = """
import sys
import mxnet as mx
from mxnet import autograd, gluon
net = gluon.nn.HybridSequential()
for i in range(4):
    pointwise = gluon.nn.HybridLambda(lambda F, x: F.tanh(F.exp(F.tanh(x))))
    net.add(gluon.nn.Dense(64), pointwise, gluon.nn.Activation("tanh"), gluon.nn.HybridLambda("softmax"))
net.initialize()
net.hybridize(**FLAGS)
for rows in (640, 640, 720):
    with autograd.record():
        loss = net(mx.nd.ones((rows, 50))).sum()
    loss.backward()
    net(mx.nd.ones((64, 50)))
mx.nd.waitall()
plans = getattr(net._cached_op, "plans", {}).values()
print("planned" if any(not plan.changes_nothing for plan in plans) else "stock")
"""


def said(folder: Path, script: str = SCRIPT, **variables: str) -> tuple[str, list[str]]:
    values = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    values.update({"ECHO_CACHE_DIR": str(folder / "cache"), "MXNET_MKLDNN_ENABLED": "0", **variables})
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, env=values
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith(("operator =", "params =", "input storage"))]
    return done.stdout.strip(), sorted(lines)


def test_lines_on_storage_types_are_those_of_stock(tmp_path: Path) -> None:
    kind, stock = said(tmp_path)
    assert kind == "Executor"
    assert "operator = Activation" in stock
    for _ in ("searched", "from the disk"):
        assert said(tmp_path, ECHO="1") == ("PlannedExecutor", stock)


@pytest.mark.parametrize("verbose", ["0", "1"])
def test_users_own_switch_of_these_lines_stays(tmp_path: Path, verbose: str) -> None:
    _, lines = said(tmp_path, ECHO="1", MXNET_STORAGE_FALLBACK_LOG_VERBOSE=verbose)
    assert bool(lines) == (verbose == "1")


@pytest.mark.slow
@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}])
def test_lines_of_a_hybridized_block_are_those_of_stock(tmp_path: Path, flags: dict[str, bool]) -> None:
    script = GLUON.replace("FLAGS", repr(flags))
    kind, stock = said(tmp_path, script)
    assert kind == "stock"
    assert "operator = _backward_softmax" in stock
    for _ in ("searched", "from the disk"):
        assert said(tmp_path, script, ECHO="1") == ("planned", stock)
