"""Binds of symbols: instead of MXNet's own, and again for other shapes."""

from __future__ import annotations

import contextlib
import functools
import logging
from dataclasses import dataclass, replace
from typing import Any, Callable, ContextManager

import mxnet as mx
from mxnet.symbol import Symbol

from echo.estimators.layouts import with_layout_copies
from echo.frontend import mxnet_settings
from echo.frontend.capture import bind_without_memory, training_graph
from echo.frontend.framework import MxnetFramework
from echo.frontend.mxnet_settings import match_range, unfused
from echo.frontend.symbols import Binding, graph_from, symbol_of, text_of, without_marks
from echo.ir.graph import Graph
from echo.ir.training_graph import TrainingGraph
from echo.passes.request import Request
from echo.passes.rewrite import Confirm, Rewritten
from echo.planning.reuse import PlannedGraph
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.runtime import bind_request
from echo.runtime.applied import AppliedPlan
from echo.runtime.bind_plan import NO_PLAN, BindPlan, find_plan, follow_plan, plan_bind
from echo.runtime.bind_request import BindRequest, shapes_of
from echo.runtime.error_policy import ErrorPolicy, RaiseUnmetRequests, first_bindable
from echo.runtime.executor import PlannedExecutor, planned_executor
from echo.system.threads import own_binds
from echo.verify.verifier import Verifier

# Binding with a plan: how an optimized symbol, or any symbol in transparent mode, becomes an executor.

logger = logging.getLogger("echo")


@own_binds()
def with_plan(
    request: BindRequest,
    options: Options,
    on_error: ErrorPolicy,
    read: Callable[[], Graph],
    record: Callable[[Plan], None] | None = None,
) -> mx.executor.Executor:
    """Plans the symbol, and has MXNet bind the planned graph, or the first that it accepts (`first_bindable`).

    ``read`` returns the symbol's graph, ``record`` receives the plan. The executor shows the user's symbol.

    Raises:
        Exception: planning failed; the caller asks ``on_error`` what the user gets then.
    """
    original = plain(request.symbol)
    if request.untouched:
        logger.debug("echo: bound as it is: %s", request.untouched)
        return request.call(original)
    original, graph = without_marks(original, read())
    details = record is not None

    def find(options: Options) -> BindPlan:
        return plan_bind(graph, request, options, details)

    rebinder = Rebinder(graph, request.ctx, on_error.later, record)
    choice = find(options)
    bind = functools.partial(_bound, original, request, rebinder)
    unfused = functools.partial(_unfused, find, options, choice)
    executor, (planned, pool) = first_bindable(choice, bind, unfused, NO_PLAN, on_error, "bound")
    if planned is None:
        return executor
    if record is not None:
        record(planned.plan)
    verifier = Verifier(options, planned.plan, on_error.strict) if options.verify else None
    applied = AppliedPlan(graph, planned.base, planned.graph, shapes_of(executor), rebinder, verifier)
    executor = planned_executor(executor, applied)
    if isinstance(executor, PlannedExecutor):
        executor._pool = pool
    return executor


def _unfused(find: Callable[[Options], BindPlan], options: Options, choice: BindPlan) -> BindPlan:
    """The plan without fused operators; nothing where it had none, or where the user gave the plan himself."""
    planned = choice.planned
    has_fused = planned is not None and planned.plan.fused and not options.plans
    return find(replace(options, fuse=False)) if has_fused else NO_PLAN


def _bound(original: Symbol, request: BindRequest, rebinder: Rebinder, choice: BindPlan) -> mx.executor.Executor:
    """An executor of the planned graph, or of the user's own where there is none or nothing is changed."""
    planned = choice.planned
    if planned is None or planned.plan.changes_nothing:
        return request.call(original)
    plan, graph = planned.plan, planned.graph

    def own() -> None:
        bind_without_memory(plain(original), request.binding(), request.ctx, quiet=False)

    as_mirror = match_range(plan.match_range if plan.applied == "mirror" else None)
    with as_mirror, rebinder.pointwise(graph), mxnet_settings.of_user(own):
        executor = request.call(symbol_of(graph), request.binding() if plan.fused else None)
    executor._symbol = original
    return executor


def bind_unmodified(request: BindRequest) -> mx.executor.Executor:
    """Has MXNet bind the user's own symbol, without a plan."""
    with own_binds():
        return request.call(plain(request.symbol))


def plain(symbol: Symbol) -> Symbol:
    """A copy of the user's symbol that does not plan itself."""
    return Symbol.__deepcopy__(symbol, None)


# A symbol that plans itself when it is bound, since only then its shapes are known.


class OptimizedSymbol(Symbol):  # type: ignore[misc]
    """The user's symbol with another ``bind`` and ``simple_bind``, which apply a plan.

    Arguments, auxiliary states, outputs, their order, JSON and checkpoints are the user's own. ``plans`` holds the
    plan of each bind so far, the latest last.
    """

    def __init__(self, handle: Any, options: Options, graph: Graph | None = None) -> None:
        super().__init__(handle)
        self.options = options
        self.plans: list[Plan] = []
        self._read = ("", graph) if graph is None else (text_of(self), graph)

    def graph(self) -> Graph:
        """The symbol's graph, read once and again where the program has changed the symbol since."""
        text, graph = text_of(self), self._read[1]
        if graph is None or text != self._read[0]:
            graph = graph_from(text)
            self._read = text, graph
        return graph

    def __deepcopy__(self, _: Any = None) -> OptimizedSymbol:
        return optimize_symbol(self, self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (text_of(self), self.options)

    def simple_bind(self, *args: Any, **kwargs: Any) -> mx.executor.Executor:
        """As ``Symbol.simple_bind``, with a plan applied."""
        return self._bound(bind_request.simple_bind(self, Symbol.simple_bind, *args, **kwargs))

    def bind(self, *args: Any, **kwargs: Any) -> mx.executor.Executor:
        """As ``Symbol.bind``, with a plan applied."""
        return self._bound(bind_request.bind(self, Symbol.bind, *args, **kwargs))

    def _bound(self, request: bind_request.BindRequest) -> mx.executor.Executor:
        on_error = RaiseUnmetRequests(self.options)
        return on_error(
            lambda options: with_plan(request, options, on_error, self.graph, self.plans.append),
            lambda: bind_unmodified(request),
        )


def optimize_symbol(symbol: Symbol, options: Options, graph: Graph | None = None) -> OptimizedSymbol:
    """A copy of the symbol that plans itself when it is bound; ``graph`` is the symbol's, where it was read already."""
    copy = plain(symbol)
    handle, copy.handle = copy.handle, None  # the copy is dropped here, and would free it
    return OptimizedSymbol(handle, options, graph)


def _unpickled(json: str, options: Options) -> OptimizedSymbol:
    return optimize_symbol(mx.sym.load_json(json), options)


@dataclass(frozen=True)
class Rebinder:
    """Binds an executor with a plan again, for other shapes or another mode (`echo.runtime.applied.Rebinds`)."""

    original: Graph
    ctx: mx.Context
    on_error: ErrorPolicy
    record: Callable[[Plan], None] | None

    def replan(self, binding: Binding) -> tuple[Graph, Graph] | None:
        def plan(options: Options) -> PlannedGraph | None:
            followed = follow_plan(self.original, lambda: binding, self.ctx, options)
            if followed is not None:
                return followed
            details = self.record is not None
            return find_plan(self.original, lambda: binding, self.ctx, options, details=details, further=True)

        with own_binds():
            planned = self.on_error(plan, lambda: None)
        if planned is None:
            return None
        if self.record is not None:
            self.record(planned.plan)
        return planned.base, planned.graph

    def differentiate(self, graph: Graph, binding: Binding) -> TrainingGraph:
        with own_binds():
            return training_graph(graph, binding, self.ctx)

    def confirms(self, base: Graph, graph: Graph, binding: Binding) -> bool:
        def confirmed(options: Options) -> bool:
            request = Request(base, options, MxnetFramework(base, binding, self.ctx))
            training = with_layout_copies(request.framework.differentiate(), request.framework.device)
            return Confirm().confirmed(request, training, Rewritten(graph, None)).accepted

        with own_binds():
            return bool(self.on_error(confirmed, lambda: False))

    def bind(self, bound: Graph | Symbol, *args: Any, **more: Any) -> mx.executor.Executor:
        symbol = symbol_of(bound) if isinstance(bound, Graph) else bound
        with own_binds(), self.pointwise(bound):
            return Symbol.bind(symbol, *args, **more)

    def pointwise(self, bound: Graph | Symbol) -> ContextManager[None]:
        is_planned = isinstance(bound, Graph) and bound != self.original
        return unfused(self.ctx) if is_planned else contextlib.nullcontext()
