"""``verify``: checks before the first training step of a bound graph that its results are the original graph's.

If it does not, one warning names a folder with everything that a report needs, and the original graph runs from then
on. Under ``strict`` that is an error.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Callable, List, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.symbol import Symbol

from echo.errors import EchoError, VerificationError
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, load, symbol_of
from echo.ir.graph import Graph
from echo.ir.training_graph import Runner
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.plans.text import faster_advice
from echo.verify import compare
from echo.verify.storage import Difference, beside_storage, growth

logger = logging.getLogger("echo")
Findings = Tuple[List[Difference], str]  # and a text about storage, for the log
_LEAST_SECONDS = 0.05  # of a step: shorter ones vary by more than graphs differ
_NOISE = 0.15  # of a step that is run twice or three times, next to copies of its arrays
Make = Callable[[bool], Any]  # makes an executor or a CachedOp: of the planned graph, or of the original one


@dataclass(frozen=True)
class Case:
    """One bound graph and its inputs: ``arrays`` are arguments, auxiliary states and gradients before the step."""

    runner: Runner
    original: Graph
    bound: Graph
    fuses: bool  # last bits may differ
    ctx: mx.Context
    plan: Plan | None
    requests: Mapping[str, str]  # of executors, by argument; of CachedOps "write" where a gradient was asked for
    arrays: Mapping[str, Mapping[str, Any]]  # by "argument", "state" and "gradient", then by name
    flags: Sequence[tuple[str, Any]] = ()
    training: bool = True
    options: Options | None = None  # as far as they are known
    seconds: dict[bool, list[float]] = field(default_factory=dict, compare=False)  # of steps, with the plan or without

    @staticmethod
    def of_call(inputs: Mapping[str, Any], ctx: mx.Context, **facts: Any) -> Case:
        """Returns the case of a call of a CachedOp with these inputs, as autograd records them now."""
        requests = {name: "write" for name, array in inputs.items() if compare.is_recorded(array)}
        arrays = {"argument": inputs}
        return Case(requests=requests, arrays=arrays, ctx=ctx, training=autograd.is_training(), **facts)

    def find(self, make: Make, planned: Any) -> Findings:
        """Runs a step of both graphs from one random state, which is restored; returns what differs.

        ``planned`` is the executor or CachedOp to verify. Others, of ``make``, run the original graph, and then each
        graph separately, to compare the storage that both hold.

        Raises:
            UnverifiedError: the graph cannot be run twice.
        """

        def step(of_plan: bool) -> compare.Arrays:
            runnable, start = make(of_plan), time.perf_counter()
            arrays = self._step(runnable)
            self.seconds.setdefault(of_plan, []).append(time.perf_counter() - start)
            return arrays

        with compare.same_random(self.original, self.ctx.device_type == "gpu") as (restore, read_state):
            expected, first = step(False), read_state()
            restore()
            actual, second = self._step(planned), read_state()
            grown, told = growth(lambda: step(False), lambda: step(True), self.ctx, beside_storage(self.plan, self.ctx))
        wrong = compare.differences(expected, actual, self.fuses)
        if first != second:
            wrong.append(Difference("the stream of random numbers", float("nan"), np.zeros(0), np.zeros(0)))
        return wrong if grown is None else [*wrong, grown], told

    def why_slow(self) -> str:
        """Returns a text on a step that takes longer than the bound on time, or "" if none is seen to.

        Of each graph the fastest step counts: the first one allocates.
        """
        options = self.options
        if options is None or not {False, True} <= self.seconds.keys():
            return ""
        bound = options.max_time
        if bound is None and options.overhead_bound is not None:
            bound = 1 + options.overhead_bound
        original, planned = (min(self.seconds[of_plan]) for of_plan in (False, True))
        if bound is None or original < _LEAST_SECONDS or planned <= (bound + _NOISE) * original:
            return ""
        predicted = None if self.plan is None else self.plan.time
        text = "" if predicted is None else f", {predicted.ratio:.2f} was predicted"
        advice = "" if self.plan is None else faster_advice(self.plan.overhead)
        return (
            f"a step took {planned / original:.2f} times the original one{text}, and the bound is {bound:.2f}: "
            f"{advice}{', and ' * bool(advice)}mxecho record measures more steps"
        )

    def _step(self, runnable: Any) -> compare.Arrays:
        if self.runner == Runner.EXECUTOR:
            return compare.step_of(runnable)
        return compare.call_of(runnable, self.arrays["argument"], symbol_of(self.original).list_auxiliary_states())


@dataclass(frozen=True)
class Verifier:
    """Verifies an executor at its first training step, and those that are made of it for other shapes at theirs.

    ``plan`` is the one that it was bound with, ``thread`` the one that bound it.
    """

    options: Options
    plan: Plan | None
    strict: bool
    thread: int = field(default_factory=threading.get_ident)

    def matches_original(self, executor: Any, inputs: Mapping[str, Any]) -> bool:
        """Whether an executor's results for these inputs are the original graph's; True if that cannot be tried.

        Raises:
            VerificationError: under ``strict``, if it does not.
        """
        applied = executor._applied
        arrays = {"argument": executor.arg_dict, "gradient": executor.grad_dict, "state": executor.aux_dict}
        case = Case(Runner.EXECUTOR, applied.original, applied.graph, applied.fuses, executor._ctx, self.plan,
                    executor.requests, arrays, options=self.options)  # fmt: skip

        def make(of_plan: bool) -> mx.executor.Executor:
            bound = applied.graph if of_plan else executor._symbol
            gradients, states = ([array if array is None else array.copy() for array in group]
                                 for group in (executor.grad_arrays, executor.aux_arrays))  # fmt: skip
            return executor._bound(bound, executor.arg_arrays, gradients, states)

        def find() -> Findings:
            if self.thread != threading.get_ident():
                raise compare.UnverifiedError("it was bound in another thread, which draws other random numbers")
            for name, array in inputs.items():
                executor.arg_dict[name][:] = array
            with compare.put_back([*executor.grad_arrays, *executor.aux_arrays]):
                return case.find(make, executor)

        return matches_original(case, find, self.strict)

    def for_rebound(self) -> Verifier:
        """Returns the verifier of an executor that this thread binds again for other shapes."""
        return replace(self, plan=None, thread=threading.get_ident())


def matches_original(case: Case, find: Callable[[], Findings], strict: bool) -> bool:
    """Whether there are no differences; otherwise the case is written to a folder, which a warning names.

    True if it cannot be tried.

    Raises:
        VerificationError: under ``strict``, if there are differences.
    """
    try:
        wrong, storage = find()
    except (EchoError, mx.MXNetError, TypeError, ValueError, KeyError) as error:  # also of wrong calls of the user's
        lines = str(error).strip().splitlines() or [type(error).__name__]
        logger.warning("echo: verify: a graph was not verified: %s", lines[-1])
        return True
    if not wrong:
        values = "outputs, gradients, states"
        if case.fuses:
            within = compare.TOLERANCE["float32"]
            values = f"{values} (within {within:g} of the largest element, as operators are fused)"
        same = f"{values} and random numbers are those of the original graph"
        logger.info("echo: verify: %s; %s", same, storage)
        if slow := case.why_slow():
            logger.warning("echo: verify: %s", slow)
        return True
    folder = write(case, wrong)
    shown = "; ".join(map(str, wrong[:3])) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    text = (
        f"a plan does not do what your original graph does: {shown}. Please report it with what is in {folder}, where "
        f"reproduce.py runs it again (it holds your parameters and this batch)"
    )
    if strict:
        raise VerificationError(text)
    logger.warning("echo: verify: %s. Your original graph runs from here on, and nothing wrong has come out.", text)
    return False


# The report of a difference: a folder with both graphs, the plan, the arrays, and a script that compares them again, in
# another process or on another machine.

_KINDS = ("argument", "gradient", "state")
_SETTINGS = ("MXNET_", "NNVM_", "ECHO_", "OMP_", "MKLDNN_", "DNNL_")
_SCRIPT = '''"""Runs the step again in which echo's plan and the stock graph differed: python reproduce.py"""
import os
import sys
from pathlib import Path

os.environ.update({settings!r})
from echo.verify.verifier import replay

sys.exit(replay(Path(__file__).parent))
'''


def write(case: Case, wrong: Sequence[Difference]) -> Path:
    """Writes a folder `echo-verify-...` into the working directory, or else into the one for temporary files."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="echo-verify-", dir=os.getcwd()))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="echo-verify-"))
    settings = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}
    given = compare.read(**case.arrays)
    about = {
        "differences": [str(difference) for difference in wrong],
        **{name: getattr(case, name) for name in ("runner", "fuses", "training")},
        "context": [case.ctx.device_type, case.ctx.device_id],
        "options": repr(case.options and replace(case.options, plan=())),
        "flags": [[name, str(value)] for name, value in case.flags],
        "requests": dict(case.requests),
        "arrays": {name: [list(array.shape), array.dtype.name] for name, array in given.items()},
        "settings": settings,
        "versions": {
            "echo": version("mxnet-echo"),
            "mxnet": mx.__version__,
            "numpy": np.__version__,
            "python": sys.version,
            "platform": platform.platform(),
        },
    }
    graphs = {name: graph.to_json() for name, graph in (("symbol", case.original), ("bound", case.bound))}
    for name, value in {"about": about, **graphs}.items():
        (folder / f"{name}.json").write_text(json.dumps(value, indent=1), encoding="utf-8")
    if case.plan is not None:
        case.plan.save(folder / "plan.json")
    np.savez(folder / "given.npz", **given)
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
    for name in case.requests if case.runner != Runner.EXECUTOR else ():
        case.arrays["argument"][name].attach_grad()

    def make(of_plan: bool) -> Any:
        symbol = symbol_of(case.bound if of_plan else case.original)
        if case.runner != Runner.EXECUTOR:
            return mx.nd.CachedOp(symbol, case.flags)
        copies = [{name: array.copy() for name, array in case.arrays.get(kind, {}).items()} for kind in _KINDS]
        return Symbol.bind(symbol, case.ctx, *copies[:2], case.requests, copies[2])

    with autograd.record(train_mode=case.training):
        wrong, _ = case.find(make, make(True))
    for difference in wrong:
        print(difference)
    print(f"{len(wrong)} differences" if wrong else "no difference")
    return int(bool(wrong))


def _loaded(folder: Path) -> Case:
    about, original, bound = (json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
                          for name in ("about", "symbol", "bound"))  # fmt: skip
    ctx = mx.Context(*about["context"])
    arrays: dict[str, dict[str, Any]] = {}
    with np.load(folder / "given.npz") as file:
        for key, value in file.items():
            kind, _, name = key.partition(" ")
            arrays.setdefault(kind, {})[name] = mx.nd.array(value, ctx, value.dtype)
    plan = folder / "plan.json"
    return Case(
        Runner(about["runner"]), graph_of(load(original)), graph_of(load(bound)), about["fuses"], ctx,
        Plan.load(plan) if plan.exists() else None, about["requests"], arrays,
        [(name, value) for name, value in about["flags"]], about["training"],
    )  # fmt: skip
