"""Binding with a plan: how an optimized symbol, or any symbol in transparent mode, becomes an executor."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Callable

import mxnet as mx
from mxnet.symbol import Symbol

from echo.frontend import mxnet_settings
from echo.frontend.capture import bind_without_memory
from echo.frontend.mxnet_settings import match_range
from echo.frontend.symbols import symbol_of, without_marks
from echo.ir.graph import Graph
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.runtime.applied import Applied
from echo.runtime.bind_call import Bind
from echo.runtime.executor import PlannedExecutor, planned_executor
from echo.runtime.find import NOTHING, Choice, plan_bind
from echo.runtime.on_error import OnError, next_best
from echo.runtime.rebind import Rebinder
from echo.runtime.rehearsal import Verifier
from echo.runtime.shapes import shapes_of
from echo.system.threads import own_binds

logger = logging.getLogger("echo")


@own_binds()
def with_plan(
    request: Bind,
    options: Options,
    on_error: OnError,
    read: Callable[[], Graph],
    record: Callable[[Plan], None] | None = None,
) -> mx.executor.Executor:
    """Plans the symbol, and has MXNet bind the planned graph, or the next best where MXNet refuses that (`next_best`).

    ``read`` returns the symbol's graph, ``record`` receives the plan. The executor shows the user's symbol.

    Raises:
        Exception: planning failed; the caller asks ``on_error`` what the user gets then.
    """
    user = plain(request.symbol)
    if request.untouched:
        logger.debug("echo: bound as it is: %s", request.untouched)
        return request.call(user)
    user, graph = without_marks(user, read())
    details = record is not None

    def find(options: Options) -> Choice:
        return plan_bind(graph, request, options, details)

    rebinder = Rebinder(graph, request.ctx, on_error.later, record)
    choice = find(options)
    bind = functools.partial(_bound, user, request, rebinder)
    unfused = functools.partial(_unfused, find, options, choice)
    executor, (planned, pool) = next_best(choice, bind, unfused, NOTHING, on_error, "bound")
    if planned is None:
        return executor
    if record is not None:
        record(planned.plan)
    verifier = Verifier(options, planned.plan, on_error.strict) if options.verify else None
    applied = Applied(graph, planned.base, planned.graph, shapes_of(executor), rebinder, verifier)
    executor = planned_executor(executor, applied)
    if isinstance(executor, PlannedExecutor):
        executor._pool = pool
    return executor


def _unfused(find: Callable[[Options], Choice], options: Options, choice: Choice) -> Choice:
    """The plan without fused operators; nothing where it had none, or where the user gave the plan himself."""
    planned = choice.planned
    has_fused = planned is not None and planned.plan.fused and not options.plans
    return find(replace(options, fuse=False)) if has_fused else NOTHING


def _bound(user: Symbol, request: Bind, rebinder: Rebinder, choice: Choice) -> mx.executor.Executor:
    """An executor of the planned graph, or of the user's own where there is none or nothing is changed."""
    planned = choice.planned
    if planned is None or planned.plan.changes_nothing:
        return request.call(user)
    plan, graph = planned.plan, planned.graph

    def own() -> None:
        bind_without_memory(plain(user), request.binding(), request.ctx, quiet=False)

    as_mirror = match_range(plan.match_range if plan.applied == "mirror" else None)
    with as_mirror, rebinder.pointwise(graph), mxnet_settings.of_user(own):
        executor = request.call(symbol_of(graph), request.binding() if plan.fused else None)
    executor._symbol = user
    return executor


def as_it_is(request: Bind) -> mx.executor.Executor:
    """Has MXNet bind the user's own symbol, without a plan."""
    with own_binds():
        return request.call(plain(request.symbol))


def plain(symbol: Symbol) -> Symbol:
    """A copy of the user's symbol that does not plan itself."""
    return Symbol.__deepcopy__(symbol, None)
