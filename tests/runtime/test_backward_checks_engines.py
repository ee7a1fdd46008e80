"""Every engine of MXNet counts the writes to an array."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("cheap_planning")


_SCRIPT = """
import echo, mxnet as mx
from echo.runtime import backward_checks
S = mx.sym
net = S.var("data")
for name in ("ln", "ln1", "ln2"):
    net = S.sigmoid(S.tanh(S.LayerNorm(S.FullyConnected(net, num_hidden=48), name=name)))
net = S.sum(net)
executor = echo.optimize(net, fuse=False, max_overhead=None, strict=True).simple_bind(mx.cpu(), data=(64, 48))
assert executor._applied.watch is not None
for _ in range(3):
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones(1))
    executor.arg_dict["ln_gamma"][:] = 2
executor.forward(is_train=True)
executor.arg_dict["ln_gamma"][:] = 3
try:
    executor.backward(mx.nd.ones(1))
except echo.errors.ChangedInputError as error:
    print("refused", error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["NaiveEngine", "ThreadedEngine", "ThreadedEnginePerDevice"])
def test_every_engine_counts(engine: str, tmp_path: Any) -> None:
    environment = {**os.environ, "MXNET_ENGINE_TYPE": engine, "ECHO_CACHE_DIR": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True)
    assert found.stdout.startswith("refused 'ln_gamma'"), found.stderr
