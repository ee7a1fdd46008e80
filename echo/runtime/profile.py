"""Profiles of a model: what a step of it takes, measured in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, NamedTuple

import mxnet as mx
import numpy as np

from echo import native
from echo.errors import NativeError, OptionError, UnsupportedError, one_line
from echo.frontend.framework import MIRROR_VARIABLE, MxnetFramework
from echo.frontend.measurement_process import interpreter
from echo.frontend.symbols import graph_of, symbol_of
from echo.ir.training_graph import Runner, TrainingGraph
from echo.native import counter
from echo.plans.decisions import Memory
from echo.plans.frontier import Frontier
from echo.plans.frontier import frontier as curve
from echo.plans.options import Options, items_of
from echo.plans.plan import Plan
from echo.report.profile import Profile
from echo.report.segment import segment_of
from echo.report.usage import BLOCKS, DEVICE, GRAPH, MIRROR, PLANNED, PROCESS, STOCK, STORAGE, UNWRITTEN, Usage, usage
from echo.runtime import bind_plan
from echo.runtime.bind import optimize_symbol
from echo.system.process import reset_peak, resident, trim
from echo.verify.storage import counting_blocker, peak_storage

# Measures the bytes of a real training step from outside: of the process, MXNet's storage counter and the device.
#
# Each graph runs in a process of its own, so that nothing of another one is left there. Files in the current folder
# do not reach it: Python's own modules come first. Its arrays hold zeros: what a step takes does not depend on their
# values.

_LIMIT = 600.0  # seconds for one graph
_STEPS = 2  # the first one may allocate more, the second shows what stays
# isolated Python, which has no PYTHONPATH: what this process has on its path follows after Python's own modules
_START = """
import json, sys
site = (number for number, folder in enumerate(sys.path) if folder.endswith(("site-packages", "dist-packages")))
place = next(site, len(sys.path))
sys.path[place:place] = [folder for folder in json.loads(sys.argv[2]) if folder not in sys.path]
from pathlib import Path
from echo.runtime.profile import main
sys.exit(main(Path(sys.argv[1])))
"""
_CALL, _SYMBOL, _PLAN = "call.json", "symbol.json", "plan.json"


def measured(
    symbol: mx.sym.Symbol, call: Mapping[str, Any], plan: Plan | None = None, variables: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Bytes by which a bind and two training steps grow `PROCESS`, `STORAGE` and, on a GPU, `DEVICE`.

    On a CPU also `BLOCKS`, what operators draw and oneDNN allocates alongside MXNet's storage; `GRAPH`, what the bind
    takes alongside the arrays; and `UNWRITTEN`, by how much less is written to at once than is allocated at once, which
    takes no memory. All three are only there where the library is built that counts blocks (`echo.native.counter`).

    Args:
        symbol: what is bound.
        call: how it is bound, by `echo.frontend.framework.MxnetFramework.call`.
        plan: the plan that is applied; without one, the symbol is bound by MXNet alone.
        variables: environment variables of the process.

    Raises:
        UnsupportedError: the process failed; the message has its last line.
    """
    with tempfile.TemporaryDirectory(prefix="echo-profile-") as name:
        folder = Path(name)
        (folder / _CALL).write_text(json.dumps(call), encoding="utf-8")
        (folder / _SYMBOL).write_text(symbol.tojson(), encoding="utf-8")
        if plan is not None:
            plan.save(folder / _PLAN)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
        with contextlib.suppress(NativeError):
            kept.update(counter.preloaded(kept))
        command = [interpreter(), "-I", "-c", _START, str(folder), json.dumps(_folders())]
        try:
            done = subprocess.run(
                command, env={**kept, **(variables or {})}, capture_output=True, text=True, timeout=_LIMIT, check=True
            )
        except subprocess.TimeoutExpired as error:
            raise UnsupportedError(f"a step of the model took more than {_LIMIT:g} s") from error
        except subprocess.CalledProcessError as error:
            said = (error.stderr or "").strip().splitlines() or [f"exit {error.returncode}"]
            raise UnsupportedError(f"a step of the model does not run here: {said[-1]}") from error
        return {str(key): int(size) for key, size in json.loads(done.stdout.splitlines()[-1]).items()}


def _folders() -> list[str]:
    """The folders of ``sys.path``, but those of the program and the current one, unless mxnet or echo lies there."""
    needed = {str(Path(file).parents[1]) for file in (mx.__file__, native.__path__[0]) if file}
    main = getattr(sys.modules["__main__"], "__file__", None)
    left_out = {os.getcwd(), os.path.dirname(os.path.abspath(main)) if main else ""} - needed
    return [folder for folder in map(os.path.abspath, sys.path) if folder not in left_out]


def _grow(folder: Path) -> dict[str, int]:
    """Binds and runs what `measured` wrote into a folder, in this process."""
    call = json.loads((folder / _CALL).read_text(encoding="utf-8"))
    symbol = mx.sym.load(str(folder / _SYMBOL))
    if (folder / _PLAN).exists():
        symbol = optimize_symbol(symbol, Options(plan=Plan.load(folder / _PLAN)), graph_of(symbol))
    ctx = mx.Context(*call["ctx"])
    _warm_up(ctx)
    trim()
    before = {PROCESS: resident("VmRSS"), DEVICE: _on_device(ctx)}
    blocks, unwritten = _blocks()
    if counting_blocker():
        storage, (bound, on_device) = None, _train(symbol, ctx, call)
    else:
        storage, (bound, on_device) = peak_storage(lambda: _train(symbol, ctx, call), ctx)
    after = {PROCESS: resident("VmHWM"), DEVICE: on_device}
    grown = {key: after[key] - before[key] for key in after if before[key]}
    if storage is None:
        return grown
    grown[STORAGE] = storage
    if ctx.device_type == "cpu" and counter.counting() and before[PROCESS]:
        arrays = bound.blocks - blocks
        grown[BLOCKS] = max(counter.peak() - blocks - storage, 0)
        grown[GRAPH] = max(bound.resident - before[PROCESS] - arrays, 0)
        grown[UNWRITTEN] = max(counter.peak() - counter.written_peak() - unwritten, 0)
    return grown


def _blocks() -> tuple[int, int]:
    """The bytes of the blocks that are allocated, and of those that nothing wrote to; 0 where they are not counted."""
    if not counter.counting():
        return 0, 0
    counter.reset()  # so that the peaks are now
    return counter.peak(), counter.peak() - counter.written_peak()


def _warm_up(ctx: mx.Context) -> None:
    """Starts the threads and loads what every training step has loaded."""
    data, weight = mx.sym.var("data"), mx.sym.var("weight")
    product = mx.sym.FullyConnected(data, weight, no_bias=True, num_hidden=8)
    executor = mx.sym.Symbol.simple_bind(mx.sym.tanh(product), ctx, data=(8, 8), weight=(8, 8))
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones((8, 8), ctx)])
    mx.nd.waitall()


class _Bound(NamedTuple):
    """After a bind: the bytes of this process, and those of the allocated blocks (0 where they are not counted)."""

    resident: int
    blocks: int


def _train(symbol: mx.sym.Symbol, ctx: mx.Context, call: Mapping[str, Any]) -> tuple[_Bound, int]:
    """Binds and trains; what there was between, and the bytes used on the device when all that steps take is there."""
    shapes = {name: tuple(shape) for name, shape in call["shapes"].items()}
    executor = symbol.simple_bind(ctx, grad_req=call["grad_req"], type_dict=call["types"], **shapes)
    mx.nd.waitall()
    trim()
    bound = _Bound(resident("VmRSS"), counter.now() if counter.counting() else 0)
    reset_peak()  # otherwise the bind counts, too
    if counter.counting():
        counter.reset()
    for _ in range(_STEPS):
        outputs = executor.forward(is_train=True)
        try:
            executor.backward()
        except mx.MXNetError:  # its outputs are no losses
            executor.backward([mx.nd.ones_like(output) for output in outputs])
        mx.nd.waitall()
    return bound, _on_device(ctx)


def _on_device(ctx: mx.Context) -> int:
    if ctx.device_type != "gpu":
        return 0
    free, total = mx.context.gpu_memory_info(ctx.device_id)
    return int(total - free)


def main(folder: Path) -> int:
    """Prints what grew as JSON, or why it does not run as one line on standard error; the exit status."""
    try:
        print(json.dumps(_grow(folder)))
    except Exception as error:  # the user's model, or his MXNet: whatever it is, he is told
        print(one_line(error), file=sys.stderr)
        return 1
    return 0


# `echo.profile`: the memory of a model's training step, from MXNet's own training graphs.

COMPARED = (PLANNED, MIRROR)  # what a profile may set alongside the original graph


def profile(
    make_framework: Callable[[], MxnetFramework],
    options: Options,
    compare: Iterable[str],
    run: bool = False,
    budgets: int = 0,
) -> Profile:
    """The profile of a bind with these options; ``compare`` are some of `COMPARED`.

    With ``run``, each graph also takes two steps in a process of its own (`echo.runtime.profile`). ``budgets`` is the
    number of points of the frontier, 0 for none.

    Raises:
        OptionError: a name in ``compare`` that echo does not know, or ``run`` for a block.
        EchoError: as for `echo.plan`.
    """
    names = _checked(compare)
    if not isinstance(run, bool):
        raise OptionError(f"run: expected True or False, got {run!r}")
    if run and make_framework().key.runner != Runner.EXECUTOR:
        raise OptionError("run: expected a symbol; a block's memory is measured where the user's program runs it")
    planned_graph = bind_plan.PLANNER.plan(make_framework, options)
    plan, stock = planned_graph.plan, make_framework().fresh_copy()
    usages, segment = {STOCK: _usage(stock, stock.differentiate(), plan.before)}, None
    if PLANNED in names:
        planned = stock.on(planned_graph.graph)
        training = planned.differentiate()
        usages[PLANNED], segment = _usage(planned, training, plan.after), segment_of(training)
    if MIRROR in names:
        training = stock.mirrored()
        usages[MIRROR] = _usage(stock, training, Memory(training.planned_bytes, 0, plan.before.static, {}, {}))
    if run:
        usages = {name: replace(usage, measured=_measured(stock, name, plan)) for name, usage in usages.items()}
    points = tuple(budget_frontier(make_framework, options, budgets).to_json()) if budgets != 0 else ()
    return Profile(usages, plan, stock.device, _versions(), points, segment)


def budget_frontier(make_framework: Callable[[], MxnetFramework], options: Options, points: int) -> Frontier:
    """Plans of ``points`` budgets, whatever time they take.

    Raises:
        OptionError: a number of points that makes no sense.
    """
    unbound = replace(options, max_overhead=None, max_time=None)
    return curve(
        lambda budget: bind_plan.PLANNER.plan(make_framework, replace(unbound, memory_budget=budget)).plan, points
    )


def _measured(framework: MxnetFramework, name: str, plan: Plan) -> Mapping[str, int]:
    symbol, call = symbol_of(framework.graph), framework.call()
    if name == MIRROR:
        return measured(symbol, call, variables={MIRROR_VARIABLE: "1"})
    return measured(symbol, call, plan if name == PLANNED else None)


def _checked(compare: Iterable[str]) -> tuple[str, ...]:
    names = items_of(compare)
    for name in names:
        if name not in COMPARED:
            raise OptionError(f"compare: expected some of {', '.join(COMPARED)}, got {name!r}")
    return names


def _usage(framework: MxnetFramework, training: TrainingGraph, memory: Memory) -> Usage:
    """``memory`` has the planned bytes; kinds that no array of the bind has are counted in addition to the arrays."""
    others = {kind: size for kind, size in memory.static.items() if kind not in framework.static}
    return usage(training, memory.planned, framework.arrays(), others)


def _versions() -> Mapping[str, str]:
    return {
        "echo": version("mxnet-echo"),
        "mxnet": mx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
