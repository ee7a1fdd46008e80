"""``verify``: checks before the first training step of a bound graph that its results are the original graph's.

If it does not, one warning names a folder with everything that a report needs, and the user's own graph runs from then
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
from echo.verify import compare
from echo.verify.storage import Difference, StepPair, beside_storage

logger = logging.getLogger("echo")
Findings = Tuple[List[Difference], str]  # and a text about storage, for the log


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
        return matches_original(lambda: self._differences(executor, inputs), lambda: self._case(executor), self.strict)

    def _differences(self, executor: Any, inputs: Mapping[str, Any]) -> Findings:
        if self.thread != threading.get_ident():
            raise compare.UnverifiedError("it was bound in another thread, which draws other random numbers")
        for name, array in inputs.items():
            executor.arg_dict[name][:] = array
        stock, applied = mx.executor.Executor, executor._applied
        count = len(executor.grad_arrays)
        with compare.put_back([*executor.grad_arrays, *executor.aux_arrays]) as before:

            def fresh(bound: Graph | Symbol) -> compare.Arrays:
                copies = [None if array is None else array.copy() for array in before]
                rebound = executor._bound(bound, executor.arg_arrays, copies[:count], copies[count:])
                return compare.step_of(rebound, stock.forward, stock.backward)

            def user() -> compare.Arrays:
                return fresh(executor._symbol)

            def planned() -> compare.Arrays:
                return compare.step_of(executor, stock.forward, stock.backward)

            alone = StepPair(
                user, lambda: fresh(applied.graph), executor._ctx, beside_storage(self.plan, executor._ctx)
            )
            return compare.compared(applied.user, applied.fuses, user, planned, alone), alone.told

    def for_rebound(self) -> Verifier:
        """Returns the verifier of an executor that this thread binds again for other shapes."""
        return replace(self, plan=None, thread=threading.get_ident())

    def _case(self, executor: Any) -> Case:
        applied = executor._applied
        return Case(
            runner=Runner.EXECUTOR,
            user=applied.user,
            bound=applied.graph,
            fuses=applied.fuses,
            context=str(executor._ctx),
            plan=self.plan,
            requests=executor.requests,
            given=compare.read(argument=executor.arg_dict, gradient=executor.grad_dict, state=executor.aux_dict),
            options=repr(replace(self.options, plan=())),
            hidden=beside_storage(self.plan, executor._ctx),
        )


def call_matches_original(
    make_stock: Callable[[], Any],
    planned: Any,
    make_planned: Callable[[], Any],
    inputs: Mapping[str, Any],
    states: Sequence[str],
    case: Callable[[Mapping[str, str], compare.Arrays], Case],
    strict: bool,
) -> bool:
    """Whether the results of ``planned``, a CachedOp, for these inputs are those of one of the original graph.

    ``make_stock`` makes a CachedOp of the user's graph, ``make_planned`` another one of the planned graph. ``states``
    names the auxiliary states among the inputs. ``case`` makes the report's case of the gradients that are asked for
    and the arrays. True where it cannot be tried.

    Raises:
        VerificationError: under ``strict``, if it does not.
    """

    def full_case() -> Case:
        requests = {name: "write" for name, array in inputs.items() if compare.is_recorded(array)}
        return case(requests, compare.read(argument=inputs))

    def differences() -> Findings:
        about, ctx = case({}, {}), next(iter(inputs.values())).context

        def call(op: Callable[[], Any]) -> Callable[[], compare.Arrays]:
            return lambda: compare.call_of(op(), inputs, states)

        alone = StepPair(call(make_stock), call(make_planned), ctx, about.hidden)
        return compare.compared(about.user, about.fuses, call(make_stock), call(lambda: planned), alone), alone.told

    return matches_original(differences, full_case, strict)


def matches_original(differences: Callable[[], Findings], case: Callable[[], Case], strict: bool) -> bool:
    """Whether there are no differences; otherwise the case is written to a folder, which a warning names."""
    try:
        wrong, storage = differences()
    except (EchoError, mx.MXNetError, TypeError, ValueError, KeyError) as error:  # also of wrong calls of the user's
        lines = str(error).strip().splitlines() or [type(error).__name__]
        logger.warning("echo: verify: a graph was not verified: %s", lines[-1])
        return True
    if not wrong:
        same = "outputs, gradients, states and random numbers are those of the user's own graph"
        logger.info("echo: verify: %s; %s", same, storage)
        return True
    folder = write(case(), wrong)
    shown = "; ".join(map(str, wrong[:3])) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    text = (
        f"a plan does not do what your own graph does: {shown}. Please report it with what is in {folder}, where "
        f"reproduce.py runs it again (it holds your parameters and this batch)"
    )
    if strict:
        raise VerificationError(text)
    logger.warning("echo: verify: %s. Your own graph runs from here on, and nothing wrong has come out.", text)
    return False


# The report of a difference: a folder with both graphs, the plan, the arrays, and a script that compares them again, in
# another process or on another machine.

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
    about = {
        "differences": [str(difference) for difference in wrong],
        **{name: getattr(case, name) for name in ("runner", "context", "fuses", "training", "hidden", "options")},
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
