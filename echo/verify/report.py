"""The folder that ``verify`` leaves where a plan differs from the original graph, and how it is run again.

It holds both graphs, the plan, the arrays that went in and those that differ, and a script that compares the two once
more, in another process or on another machine.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.symbol import Symbol

from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, load, symbol_of
from echo.ir.graph import Graph
from echo.ir.training_graph import Runner
from echo.plans.plan import Plan
from echo.verify import compare
from echo.verify.storage import Difference, StepPair

_SETTINGS = ("MXNET_", "NNVM_", "ECHO_", "OMP_", "MKLDNN_", "DNNL_")
_SCRIPT = '''"""Runs the step again in which echo's plan and the stock graph differed: python reproduce.py"""
import os
import sys
from pathlib import Path

os.environ.update({settings!r})
from echo.verify.report import replay

sys.exit(replay(Path(__file__).parent))
'''


@dataclass(frozen=True)
class Case:
    """One bound graph and its inputs: ``given`` are arguments, auxiliary states and gradients before the step.

    ``fuses``: last bits may differ, as of fused operators.
    """

    runner: Runner
    user: Graph
    bound: Graph
    fuses: bool
    context: str
    plan: Plan | None
    requests: Mapping[str, str]  # of executors, by argument; of CachedOps "write" where a gradient was asked for
    given: compare.Arrays
    flags: Sequence[tuple[str, Any]] = ()
    training: bool = True
    options: str = ""
    hidden: int | None = None  # bytes that the user's operators hold where MXNet does not count them


def write(case: Case, wrong: Sequence[Difference]) -> Path:
    """Writes the folder into the working directory, or else into the one for temporary files."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="echo-verify-", dir=os.getcwd()))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="echo-verify-"))
    settings = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}
    about = {
        "differences": [str(difference) for difference in wrong],
        "runner": case.runner,
        "context": case.context,
        "fuses": case.fuses,
        "training": case.training,
        "hidden": case.hidden,
        "options": case.options,
        "flags": [[name, str(value)] for name, value in case.flags],
        "requests": dict(case.requests),
        "arrays": {name: [list(array.shape), array.dtype.name] for name, array in case.given.items()},
        "settings": settings,
        "versions": {
            "echo": version("mxnet-echo"),
            "mxnet": mx.__version__,
            "numpy": np.__version__,
            "python": sys.version,
            "platform": platform.platform(),
        },
    }
    (folder / "about.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    for name, graph in (("symbol", case.user), ("bound", case.bound)):
        (folder / f"{name}.json").write_text(json.dumps(graph.to_json()), encoding="utf-8")
    if case.plan is not None:
        case.plan.save(folder / "plan.json")
    np.savez(folder / "given.npz", **case.given)
    sides = ("own", "echo")
    arrays = {f"{side} {difference.name}": getattr(difference, side) for difference in wrong for side in sides}
    np.savez(folder / "differences.npz", **arrays)
    (folder / "reproduce.py").write_text(_SCRIPT.format(settings=settings), encoding="utf-8")
    return folder


def replay(folder: Path) -> int:
    """Compares the two graphs of a folder once more; 1 where they differ, with a line for each array."""
    why = install_hook()
    if why:
        print(f"no native hook, and so no plan: {why}")
        return 2
    case = _loaded(folder)
    run = _step if case.runner == Runner.EXECUTOR else _call
    ctx = mx.Context(*_device(case.context))
    alone = StepPair(lambda: run(case, case.user), lambda: run(case, case.bound), ctx, case.hidden)
    wrong = compare.compared(case.user, case.fuses, alone.stock, alone.planned, alone)
    for difference in wrong:
        print(difference)
    print(f"{len(wrong)} differences" if wrong else "no difference")
    return int(bool(wrong))


def _loaded(folder: Path) -> Case:
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    texts = ((folder / f"{name}.json").read_text(encoding="utf-8") for name in ("symbol", "bound"))
    user, bound = (graph_of(load(json.loads(text))) for text in texts)
    with np.load(folder / "given.npz") as file:
        arrays = dict(file)
    flags = [(name, value) for name, value in about["flags"]]
    runner = Runner(about["runner"])
    return Case(runner, user, bound, about["fuses"], about["context"], None, about["requests"], arrays, flags,
                about["training"], hidden=about["hidden"])  # fmt: skip


def _device(text: str) -> tuple[str, int]:
    device_type, _, number = text.rstrip(")").partition("(")
    return device_type, int(number)


def _arrays_of(case: Case, kind: str, names: Sequence[str]) -> dict[str, Any]:
    context = mx.Context(*_device(case.context))
    arrays = {name: case.given[f"{kind} {name}"] for name in names if f"{kind} {name}" in case.given}
    return {name: mx.nd.array(value, context, value.dtype) for name, value in arrays.items()}


def _step(case: Case, graph: Graph) -> compare.Arrays:
    symbol = symbol_of(graph)
    names = symbol.list_arguments()
    args, gradients = _arrays_of(case, "argument", names), _arrays_of(case, "gradient", names)
    states = _arrays_of(case, "state", symbol.list_auxiliary_states())
    executor = Symbol.bind(symbol, mx.Context(*_device(case.context)), args, gradients, dict(case.requests), states)
    stock = mx.executor.Executor
    return compare.step_of(executor, stock.forward, stock.backward)


def _call(case: Case, graph: Graph) -> compare.Arrays:
    symbol = symbol_of(graph)
    inputs = _arrays_of(case, "argument", symbol.list_inputs())
    for name, array in inputs.items():
        if case.requests.get(name) == "write":
            array.attach_grad()
    with autograd.record(train_mode=case.training):
        return compare.call_of(mx.nd.CachedOp(symbol, case.flags), inputs, symbol.list_auxiliary_states())
