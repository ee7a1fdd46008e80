"""``verify``: whether a bound graph computes what the original graph does, asked before its first training step.

Where it does not, one warning says so and names a folder with everything that a report needs; from then on the user's
own graph runs. Under ``strict`` that is an error.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from typing import Any, Callable, List, Mapping, Sequence, Tuple

import mxnet as mx
from mxnet.symbol import Symbol

from echo.errors import EchoError, VerificationError
from echo.ir.graph import Graph
from echo.ir.training_graph import Runner
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.verify import compare, report
from echo.verify.report import Case
from echo.verify.storage import Difference, StepPair, beside_storage

logger = logging.getLogger("echo")
Findings = Tuple[List[Difference], str]  # and a text about storage, for the log


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
        """Whether an executor does what the original graph does with these inputs; True where that cannot be tried.

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
    """Whether ``planned``, a CachedOp, computes on these inputs what one of the original graph does.

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
    except (EchoError, mx.MXNetError, TypeError, ValueError, KeyError) as error:  # also of what the user called wrongly
        lines = str(error).strip().splitlines() or [type(error).__name__]
        logger.warning("echo: verify: a graph was not verified: %s", lines[-1])
        return True
    if not wrong:
        same = "outputs, gradients, states and random numbers are those of the user's own graph"
        logger.info("echo: verify: %s; %s", same, storage)
        return True
    folder = report.write(case(), wrong)
    shown = "; ".join(map(str, wrong[:3])) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    text = (
        f"a plan does not do what your own graph does: {shown}. Please report it with what is in {folder}, where "
        f"reproduce.py runs it again (it holds your parameters and this batch)"
    )
    if strict:
        raise VerificationError(text)
    logger.warning("echo: verify: %s. Your own graph runs from here on, and nothing wrong has come out.", text)
    return False
