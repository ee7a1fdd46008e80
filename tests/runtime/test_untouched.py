"""Planning is invisible: whatever a process can see of itself is the same after it, and so are random numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import ctypes, decimal, faulthandler, gc, json, locale, logging, os, random, resource, signal, sys, threading, time
import warnings
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

def files():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink("/proc/self/fd/" + number)
        except OSError:
            pass
    return {number: name for number, name in found.items() if not name.endswith("/fd")}

def status(*names):
    with open("/proc/self/status") as file:
        return [line.strip() for line in file if line.split(":")[0] in names]

def children():
    found = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/children") as file:
            found += file.read().split()
    return found

def environment():
    names = [name for name in os.environ] + ["NNVM_EXEC_MATCH_RANGE"]
    get = ctypes.CDLL(None).getenv
    get.restype = ctypes.c_char_p
    return {name: str(get(name.encode())) for name in names}

def threads():  # MXNet starts some of its own when an operator first runs: `warm` is before the first look
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Threads"))

def seen():
    gc.collect()
    numpy_state = np.random.get_state()
    return {
        "random": hash(random.getstate()), "numpy": [numpy_state[0], numpy_state[1].tolist(), *numpy_state[2:]],
        "environment": [dict(os.environ), environment()],
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "masks": status("SigBlk", "SigIgn", "SigCgt"), "alarm": signal.getitimer(signal.ITIMER_REAL),
        "locale": [locale.setlocale(locale.LC_ALL), str(decimal.getcontext()), sys.getrecursionlimit()],
        "threads": [threads(), [thread.name for thread in threading.enumerate()]],
        "engine": [mx.util.is_np_shape(), mx.util.is_np_array(), autograd.is_recording(), autograd.is_training(),
                   str(mx.context.current_context()), mx.engine.set_bulk_size(15)],
        "files": files(), "children": children(), "folder": os.getcwd(), "mask": [os.umask(0o22), os.umask(0o22)],
        "limits": [resource.getrlimit(getattr(resource, "RLIMIT_" + kind)) for kind in ("NOFILE", "CORE", "AS")],
        "numpy errors": [np.geterr(), np.geterrcall(), np.get_printoptions()["precision"]],
        "warnings": [str(each) for each in warnings.filters],
        "logging": [str(logging.root.handlers), logging.root.level],
        "hooks": [str(hook) for hook in (sys.excepthook, sys.displayhook, sys.gettrace(), sys.getprofile(),
                                         threading.excepthook, sys.unraisablehook)],
        "python": [list(sys.path), list(sys.argv), str(sys.meta_path), gc.isenabled(), gc.get_threshold(),
                   gc.get_freeze_count(), sys.getswitchinterval(), faulthandler.is_enabled(),
                   str(sys.stderr), str(sys.stdout)],
        "affinity": sorted(os.sched_getaffinity(0)), "nice": os.nice(0),
    }

def network():
    data = mx.sym.var("data")
    cell = mx.rnn.LSTMCell(16, prefix="lstm_")
    steps, _ = cell.unroll(8, mx.sym.Embedding(data, input_dim=40, output_dim=12, name="embedding"), merge_outputs=True)
    hidden = mx.sym.Dropout(mx.sym.LayerNorm(steps, name="norm"), p=0.3)
    hidden = mx.sym.FullyConnected(mx.sym.reshape(hidden, shape=(-1, 16)), num_hidden=40, name="out")
    return mx.sym.SoftmaxOutput(hidden, mx.sym.reshape(mx.sym.var("softmax_label"), shape=(-1,)), name="softmax")

def planned_and_drawn(echo):
    shapes = {"data": (4, 8), "softmax_label": (4, 8)}
    symbol = network()
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(8, 3, in_channels=3), gluon.nn.BatchNorm(in_channels=8), gluon.nn.Activation("relu"),
            gluon.nn.Dropout(0.3), gluon.nn.Conv2D(8, 3, in_channels=8))
    net.initialize(mx.init.Zero())
    net.hybridize(static_alloc=True)
    if echo:
        symbol = echo.optimize(symbol)
        echo.optimize(net)
    requests = {name: "null" if name in shapes else "write" for name in symbol.list_arguments()}
    executor = symbol.simple_bind(mx.cpu(), grad_req=requests, **shapes)
    with autograd.record():
        net(mx.nd.ones((2, 3, 10, 10))).backward()
    mx.nd.waitall()
    return executor

def draws():
    contexts = [mx.cpu(0), mx.cpu(1)]
    drawn = [mx.nd.random.uniform(shape=(8,), ctx=ctx).asnumpy().tolist() for ctx in contexts]
    with autograd.record():
        drawn.append(mx.nd.Dropout(mx.nd.ones((50,)), p=0.5).asnumpy().tolist())
    return drawn + [[random.random(), np.random.rand()], mx.nd.random.normal(shape=(3,)).asnumpy().tolist()]

random.seed(1), np.random.seed(2), mx.random.seed(3)
planned_and_drawn(None)  # warm
mx.engine.set_bulk_size(15)
random.seed(1), np.random.seed(2), mx.random.seed(3)
found = {}
if sys.argv[1] == "echo":
    import echo, echo.runtime.api, echo.system.terminal
    import echo.passes.analysis
    class Slow:  # planning takes its time, on a terminal
        def isatty(self): return True
        def write(self, text): shown.append(text)
        def flush(self): pass
    shown, before, sys.stderr, stderr = [], None, Slow(), sys.stderr
    echo.system.terminal._PATIENCE = 0.0
    modules, before = set(sys.modules), seen()
    found["kept"] = planned_and_drawn(echo)
    after = seen()
    sys.stderr = stderr
    assert shown, "no status line"
    found = {"changed": {name: [before[name], after[name]] for name in before if str(before[name]) != str(after[name])}}
    new = {name.partition(".")[0] for name in set(sys.modules) - modules}
    found["modules"] = sorted(new - set(getattr(sys, "stdlib_module_names", new)) - {"echo"})
    import pathlib
    table = next(pathlib.Path(os.environ["ECHO_CACHE_DIR"]).glob("costs*.json"))
    with open(table) as file:
        found["measured"] = sum(value is not None for value in json.load(file)["seconds"].values())
else:
    planned_and_drawn(None)
found["draws"] = draws()
print(json.dumps(found))
"""


def run(mode: str, folder: Path) -> Any:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, mode], capture_output=True, text=True, timeout=300, check=False,
        env={**clean, "ECHO_CACHE_DIR": str(folder), "MXNET_SUBGRAPH_VERBOSE": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_planning_leaves_the_process_unchanged(tmp_path: Path) -> None:
    stock, found = run("stock", tmp_path / "stock"), run("echo", tmp_path / "echo")
    assert found["measured"] > 5  # what was looked at is a planning that measured
    assert found["changed"] == {}
    assert found["modules"] == []
    assert found["draws"] == stock["draws"]
