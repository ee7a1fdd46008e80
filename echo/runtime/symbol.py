"""A symbol that plans itself when it is bound, since only then its shapes are known."""

from __future__ import annotations

import logging
import threading
from typing import Any, Iterator, Mapping

import mxnet as mx
from mxnet.symbol import Symbol

from echo import pipeline
from echo.errors import BudgetError, EchoError, OptionError
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import Binding, grad_reqs, graph_of, infer_binding, symbol_of
from echo.frontend.training import match_range
from echo.graph import Graph
from echo.options import Options
from echo.passes.request import Request
from echo.plan import Plan
from echo.report.progress import progress
from echo.runtime.executor import guard

logger = logging.getLogger("echo")
_plans: dict[tuple[str, Options], tuple[Plan, Graph]] = {}
_plans_lock = threading.RLock()
_MOST_PLANS = 64  # kept in memory: as many shapes of one model as buckets are usual


class OptimizedSymbol(Symbol):  # type: ignore[misc]
    """The user's symbol in every respect, but for ``bind`` and ``simple_bind``, which apply a plan.

    Arguments, auxiliary states, outputs, their order, JSON and checkpoints are the user's own. ``plans`` holds the
    plan of each bind so far, the latest last.
    """

    def __init__(self, handle: Any, options: Options) -> None:
        super().__init__(handle)
        self.options = options
        self.plans: list[Plan] = []

    def __deepcopy__(self, _: Any = None) -> OptimizedSymbol:
        return optimize_symbol(self, self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.tojson(), self.options)

    def simple_bind(self, ctx: mx.Context, grad_req: Any = "write", type_dict: Any = None, stype_dict: Any = None,
                    group2ctx: Any = None, shared_arg_names: Any = None, shared_exec: Any = None,
                    shared_buffer: Any = None, **kwargs: Any) -> mx.executor.Executor:  # fmt: skip
        """As ``Symbol.simple_bind``, with a plan applied."""

        def bind(symbol: Symbol) -> mx.executor.Executor:
            return symbol.simple_bind(ctx, grad_req, type_dict, stype_dict, group2ctx, shared_arg_names,
                                      shared_exec, shared_buffer, **kwargs)  # fmt: skip

        shapes = {name: tuple(shape) for name, shape in kwargs.items() if not isinstance(shape, str)}
        untouched = _why_untouched(self.list_arguments(), grad_req, group2ctx, stype_dict)
        return self._bind(bind, ctx, untouched, lambda: infer_binding(self, shapes, type_dict, grad_req))

    def bind(self, ctx: mx.Context, args: Any, args_grad: Any = None, grad_req: Any = "write",
             aux_states: Any = None, group2ctx: Any = None, shared_exec: Any = None) -> mx.executor.Executor:
        """As ``Symbol.bind``, with a plan applied."""

        def bind(symbol: Symbol) -> mx.executor.Executor:
            return symbol.bind(ctx, args, args_grad, grad_req, aux_states, group2ctx, shared_exec)

        def binding() -> Binding:
            return _binding_of_arrays(self, args, args_grad, grad_req, aux_states)

        untouched = _why_untouched(self.list_arguments(), grad_req, group2ctx, None)
        if args_grad is None or not args_grad:
            untouched = untouched or "no argument needs a gradient"
        return self._bind(bind, ctx, untouched, binding)

    def _bind(self, bind: Any, ctx: mx.Context, untouched: str, binding: Any) -> mx.executor.Executor:
        user = _plain(self)
        if untouched:
            logger.debug("echo: bound as it is: %s", untouched)
            return bind(user)
        try:
            plan, graph = _planned(self, binding(), ctx, self.options)
        except (BudgetError, OptionError):
            raise
        except EchoError as error:
            if self.options.strict:
                raise
            logger.warning("echo: bound without a plan (strict=True raises): %s", error)
            return bind(user)
        self.plans.append(plan)
        if plan.changes_nothing:
            logger.info("echo: %s", plan.notes[-1])
            return bind(user)
        logger.info("echo: %s", plan.summary())
        with match_range(plan.match_range):
            executor = bind(symbol_of(graph))
        executor._symbol = user
        if any(decision.op == "Dropout" for decision in plan.recomputed):
            guard(executor)
        return executor


def _unpickled(json: str, options: Options) -> OptimizedSymbol:
    return optimize_symbol(mx.sym.load_json(json), options)


def optimize_symbol(symbol: Symbol, options: Options) -> OptimizedSymbol:
    """A copy of the symbol that plans itself when it is bound."""
    copy = _plain(symbol)
    handle, copy.handle = copy.handle, None  # the copy is dropped here, and would free it
    return OptimizedSymbol(handle, options)


def _plain(symbol: Symbol) -> Symbol:
    """A copy of the user's symbol without the planning."""
    return Symbol.__deepcopy__(symbol, None)


def plan_symbol(symbol: Symbol, binding: Binding, ctx: mx.Context, options: Options) -> Plan:
    """The plan of a symbol that is bound like this."""
    return _planned(symbol, binding, ctx, options)[0]


def _planned(symbol: Symbol, binding: Binding, ctx: mx.Context, options: Options) -> tuple[Plan, Graph]:
    graph = graph_of(symbol)
    session = MxnetSession(graph, binding, ctx)
    key = (session.fingerprint + str(session.hook), options)
    with _plans_lock:
        if key not in _plans:
            with progress() as show:
                planned = pipeline.plan(Request(graph, options, session, show))
            while len(_plans) >= _MOST_PLANS:
                del _plans[next(iter(_plans))]
            _plans[key] = planned
        return _plans[key]


def _why_untouched(names: list[str], grad_req: Any, group2ctx: Any, stype_dict: Any) -> str:
    if all(request == "null" for request in grad_reqs(names, grad_req)):
        return "no argument needs a gradient"
    if group2ctx:
        return "group2ctx spreads the graph over several devices"
    if stype_dict and any(kind != "default" for kind in stype_dict.values()):
        return "sparse arguments"
    return ""


def _binding_of_arrays(symbol: Symbol, args: Any, args_grad: Any, grad_req: Any, aux_states: Any) -> Binding:
    names, aux_names = symbol.list_arguments(), symbol.list_auxiliary_states()
    arrays = list(_in_order(names, args))
    aux = list(_in_order(aux_names, aux_states or []))
    requests = list(grad_reqs(names, grad_req))
    given = dict(zip(names, _in_order(names, args_grad, optional=True)))
    requests = [request if given.get(name) is not None else "null" for name, request in zip(names, requests)]
    return Binding(
        tuple(array.shape for array in arrays),
        tuple(array.dtype for array in arrays),
        tuple(array.shape for array in aux),
        tuple(array.dtype for array in aux),
        tuple(requests),
    )


def _in_order(names: list[str], arrays: Any, optional: bool = False) -> Iterator[Any]:
    if isinstance(arrays, Mapping):
        return (arrays.get(name) if optional else arrays[name] for name in names)
    return iter(arrays)
