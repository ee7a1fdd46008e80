"""`echo.profile`: the memory of a model's training step, from MXNet's own training graphs."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib.metadata import version
from typing import Callable, Iterable, Mapping

import mxnet as mx
import numpy as np

from echo.errors import OptionError
from echo.frontend.session import MIRROR_VARIABLE, MxnetSession
from echo.frontend.symbols import symbol_of
from echo.ir.training_graph import EXECUTOR, TrainingGraph
from echo.plans.decisions import Memory
from echo.plans.frontier import Frontier
from echo.plans.frontier import frontier as curve
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.report.profile import Profile
from echo.report.segment import segment_of
from echo.report.usage import MIRROR, PLANNED, STOCK, Usage, usage
from echo.runtime import find
from echo.runtime.growth import measured

COMPARED = (PLANNED, MIRROR)  # what a profile may set beside the user's own graph


def profile(
    session: Callable[[], MxnetSession], options: Options, compare: Iterable[str], run: bool = False, budgets: int = 0
) -> Profile:
    """The profile of a bind with these options; ``compare`` are some of `COMPARED`.

    With ``run``, each graph also takes two steps in a process of its own (`echo.runtime.growth`). ``budgets`` is the
    number of points of the frontier, 0 for none.

    Raises:
        OptionError: a name in ``compare`` that echo does not know, or ``run`` for a block.
        EchoError: as for `echo.plan`.
    """
    names = _checked(compare)
    if run and session().subject.runner != EXECUTOR:
        raise OptionError("run: expected a symbol; a block's memory is measured where the user's program runs it")
    planned_graph = find.PLANNER.plan(session, options)
    plan, stock = planned_graph.plan, session().anew()
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
    points = tuple(budget_frontier(session, options, budgets).to_json()) if budgets else ()
    return Profile(usages, plan, stock.device, _versions(), points, segment)


def budget_frontier(session: Callable[[], MxnetSession], options: Options, points: int) -> Frontier:
    """Plans of ``points`` budgets, whatever time they take.

    Raises:
        OptionError: a number of points that makes no sense.
    """
    unbound = replace(options, max_overhead=None)
    return curve(lambda budget: find.PLANNER.plan(session, replace(unbound, memory_budget=budget)).plan, points)


def _measured(session: MxnetSession, name: str, plan: Plan) -> Mapping[str, int]:
    symbol, call = symbol_of(session.graph), session.call()
    if name == MIRROR:
        return measured(symbol, call, variables={MIRROR_VARIABLE: "1"})
    return measured(symbol, call, plan if name == PLANNED else None)


def _checked(compare: Iterable[str]) -> tuple[str, ...]:
    names = (compare,) if isinstance(compare, str) else tuple(compare)
    for name in names:
        if name not in COMPARED:
            raise OptionError(f"compare: expected some of {', '.join(COMPARED)}, got {name!r}")
    return names


def _usage(session: MxnetSession, training: TrainingGraph, memory: Memory) -> Usage:
    """``memory`` has the bytes that were planned; kinds of it that no array of the bind has are beside the arrays."""
    beside = {kind: size for kind, size in memory.static.items() if kind not in session.static}
    return usage(training, memory.planned, session.arrays(), beside)


def _versions() -> Mapping[str, str]:
    return {
        "echo": version("mxnet-echo"),
        "mxnet": mx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
