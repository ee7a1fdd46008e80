"""MXNet's own log lines appear no more often than without echo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo.frontend.backend_lines import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, mxnet as mx, numpy as np
data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="fc1")
output = mx.sym.FullyConnected(mx.sym.Activation(data, act_type="tanh"), num_hidden=10, name="fc2")
output = mx.sym.SoftmaxOutput(output, name="softmax")
for batch_size in (64, 32):
    batches = mx.io.NDArrayIter(np.zeros((128, 32)), np.zeros(128), batch_size=batch_size)
    module = mx.mod.Module(output)
    module.fit(batches, num_epoch=1, optimizer="sgd")
    module.score(batches, "acc")
net = mx.gluon.nn.Dense(3, activation="tanh")
net.initialize()
net.hybridize()
with mx.autograd.record():
    loss = net(mx.nd.ones((4, 2)))
loss.backward()
mx.nd.waitall()
import os
assert os.environ.get("MXNET_SUBGRAPH_VERBOSE") == (sys.argv[1] or None)
"""


def lines(on: str, verbose: str, cache: Path) -> int:
    """How often the line appears, with echo or without."""
    environment = {**os.environ, "ECHO": on, "ECHO_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    environment.pop(VARIABLE, None)
    if verbose:
        environment[VARIABLE] = verbose
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, verbose]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).count("is activated")


@pytest.mark.every(2)
@pytest.mark.parametrize("verbose", ["", "0"])
def test_no_more_lines_than_without_echo(verbose: str, tmp_path: Path) -> None:
    stock = lines("0", verbose, tmp_path)
    assert bool(stock) == (not verbose)
    assert lines("1", verbose, tmp_path) <= stock
