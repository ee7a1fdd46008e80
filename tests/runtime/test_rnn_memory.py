"""MXNet's RNN operator holds more than MXNet counts: fused layers need less than what is really allocated for it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from echo.native.counter import preloaded

pytestmark = pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="another library counts allocations already")
ROOT = Path(__file__).resolve().parents[2]

# Trains RNN layers some steps; prints bytes: what was allocated at most, MXNet's counter, and what the plan says of the
# user's operators.
_TRAINING = """
import json, os, sys
import mxnet as mx
from mxnet import autograd, gluon
import echo
from benchmarks.sockeye_log import counter_peak
from echo.native.counter import peak
from echo.plans.decisions import HIDDEN

on, steps, batch, inputs, hidden, layers, both_ways, static = map(int, sys.argv[1:])
layer = gluon.rnn.LSTM(hidden, num_layers=layers, bidirectional=bool(both_ways), input_size=inputs)
net = gluon.nn.HybridSequential()
net.add(layer, gluon.nn.Dense(1, flatten=False, in_units=hidden * (1 + both_ways)))
net.initialize()
net.hybridize(static_alloc=bool(static))
if on:
    echo.optimize(net, fuse="memory")  # whatever time it takes: the sizes are too small for it to be gained
x = mx.nd.ones((steps, batch, inputs))
mx.profiler.set_config(profile_memory=True, filename="profile.json")
mx.profiler.set_state("run")
for _ in range(3):
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    mx.nd.waitall()
mx.profiler.set_state("stop")
mx.profiler.dump()
plans = net._cached_op.plans.values() if on else ()
with open("profile.json") as file:
    counter = counter_peak(json.load(file))
hidden = [plan.before.static.get(HIDDEN, 0) for plan in plans]
print(json.dumps([peak(), counter, sum(hidden), [name for plan in plans for name, _ in plan.fused]]))
"""


class Found(NamedTuple):
    allocated: int
    counter: int
    hidden: int
    fused: list[str]


@functools.lru_cache(maxsize=None)
def trained(folder: Path, on: bool, sizes: tuple[int, ...], **variables: str) -> Found:
    environment = {**os.environ, **preloaded(), "ECHO_CACHE_DIR": str(folder), "MXNET_CPU_TEMP_COPY": "1", **variables}
    command = [sys.executable, "-c", _TRAINING, *map(str, (int(on), *sizes))]
    path = os.pathsep.join((str(ROOT), environment.get("PYTHONPATH", "")))
    done = subprocess.run(command, cwd=folder, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Found(*json.loads(done.stdout))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of them run, so that each is trained and planned once."""
    return tmp_path_factory.mktemp("rnn")


#          steps, batch, inputs, hidden, layers, both ways, static
SIZES = [(30, 32, 4, 40, 1, 0, 0), (20, 16, 64, 64, 2, 1, 1), (2, 2, 8, 8, 1, 0, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
def test_fused_layers_allocate_less_than_stock(sizes: tuple[int, ...], folder: Path) -> None:
    echo, stock = trained(folder, True, sizes), trained(folder, False, sizes)
    assert "rnn" in echo.fused
    assert echo.allocated < stock.allocated


@pytest.mark.slow
def test_counted_storage_of_fused_layers_does_not_grow(folder: Path) -> None:
    own = {"MXNET_USE_MKLDNN_RNN": "0"}
    sizes = (30, 16, 64, 128, 2, 0, 0)
    echo, stock = trained(folder, True, sizes, **own), trained(folder, False, sizes, **own)
    assert "rnn" in echo.fused
    assert echo.counter <= 1.01 * stock.counter


@pytest.mark.slow
def test_uncounted_memory_is_not_overestimated(folder: Path) -> None:
    short, long = (10, *SIZES[0][1:]), (40, *SIZES[0][1:])
    stock = [trained(folder, False, sizes) for sizes in (short, long)]
    echo = [trained(folder, True, sizes) for sizes in (short, long)]
    grown = [found.allocated - found.counter for found in stock]  # the rest of the process is the same
    taken = [found.hidden for found in echo]
    assert 0 < taken[1] - taken[0] <= grown[1] - grown[0]
