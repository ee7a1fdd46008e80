"""Binds an executor that has a plan again, for other shapes or another mode."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, ContextManager

import mxnet as mx
from mxnet.symbol import Symbol

from echo.estimators.inplace import with_kept
from echo.frontend.capture import training_graph
from echo.frontend.mxnet_settings import unfused
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import Binding, symbol_of
from echo.ir.graph import Graph
from echo.ir.training_graph import TrainingGraph
from echo.passes.request import Request
from echo.passes.rewrite import Confirm, Rewritten
from echo.planning.plan_cache import Found
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.runtime.find import find_plan, follow_plan
from echo.runtime.on_error import OnError
from echo.system.threads import own_binds


@dataclass(frozen=True)
class Rebinder:
    """Binds an executor with a plan again, for other shapes or another mode (`echo.runtime.applied.Rebinds`)."""

    user: Graph
    ctx: mx.Context
    on_error: OnError
    record: Callable[[Plan], None] | None

    def replan(self, binding: Binding) -> tuple[Graph, Graph] | None:
        def plan(options: Options) -> Found | None:
            followed = follow_plan(self.user, lambda: binding, self.ctx, options)
            if followed is not None:
                return followed
            details = self.record is not None
            return find_plan(self.user, lambda: binding, self.ctx, options, details=details, further=True)

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
            request = Request(base, options, MxnetSession(base, binding, self.ctx))
            training = with_kept(request.frontend.differentiate(), request.frontend.device)
            return Confirm().confirmed(request, training, Rewritten(graph, None)).accepted

        with own_binds():
            return bool(self.on_error(confirmed, lambda: False))

    def bind(self, bound: Graph | Symbol, *args: Any, **more: Any) -> mx.executor.Executor:
        symbol = symbol_of(bound) if isinstance(bound, Graph) else bound
        with own_binds(), self.pointwise(bound):
            return Symbol.bind(symbol, *args, **more)

    def pointwise(self, bound: Graph | Symbol) -> ContextManager[None]:
        is_planned = isinstance(bound, Graph) and bound != self.user
        return unfused(self.ctx) if is_planned else contextlib.nullcontext()
