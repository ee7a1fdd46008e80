"""Binding with a plan: how an optimized symbol, or any symbol in transparent mode, becomes an executor."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Mapping, TypeVar

import mxnet as mx
from mxnet.symbol import Symbol

from echo import pipeline, plan_cache
from echo.errors import BudgetError, EchoError, OptionError
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import Binding, grad_reqs, graph_of, infer_binding, symbol_of
from echo.frontend.training import match_range
from echo.graph import Graph
from echo.locks import Lock
from echo.options import Options
from echo.passes.hint import Hint
from echo.passes.request import Request
from echo.plan import Plan
from echo.report.progress import progress
from echo.runtime.executor import Applied, planned_executor, shapes_of
from echo.training_graph import EXECUTOR

logger = logging.getLogger("echo")
_T = TypeVar("_T")
_plans: dict[str, tuple[Plan, Graph]] = {}
_hints: dict[tuple[str, str], tuple[str, Hint | None]] = {}  # by model: the first graph of each, and its hint
_plans_lock = Lock()
_MOST_PLANS = 64  # kept in memory: as many shapes of one model as buckets are usual


_thread = threading.local()


@contextlib.contextmanager
def own_binds() -> Iterator[None]:
    """Binds that this thread makes meanwhile are echo's own: transparent mode leaves them alone."""
    before, _thread.own = are_own(), True
    try:
        yield
    finally:
        _thread.own = before


def are_own() -> bool:
    """Whether `own_binds` is open in this thread."""
    return getattr(_thread, "own", False)


@dataclass(frozen=True)
class Bind:
    """One call of ``simple_bind`` or ``bind``: how MXNet does it, and what planning has to know.

    ``untouched`` says why the symbol is bound as it is, empty where it is to be planned.
    """

    symbol: Symbol
    ctx: mx.Context
    call: Callable[[Symbol], mx.executor.Executor]
    binding: Callable[[], Binding]
    untouched: str


def simple_bind(symbol: Symbol, original: Any, ctx: mx.Context, grad_req: Any = "write", type_dict: Any = None,
                stype_dict: Any = None, group2ctx: Any = None, shared_arg_names: Any = None, shared_exec: Any = None,
                shared_buffer: Any = None, **kwargs: Any) -> Bind:  # fmt: skip
    """A call of ``Symbol.simple_bind``; ``original`` is MXNet's own."""

    def call(bound: Symbol) -> mx.executor.Executor:
        return original(bound, ctx, grad_req, type_dict, stype_dict, group2ctx, shared_arg_names, shared_exec,
                        shared_buffer, **kwargs)  # fmt: skip

    def binding() -> Binding:
        shapes = {name: tuple(shape) for name, shape in kwargs.items() if not isinstance(shape, str)}
        return infer_binding(symbol, shapes, type_dict, grad_req)

    return Bind(symbol, ctx, call, binding, _why_untouched(symbol, grad_req, group2ctx, stype_dict))


def bind(
    symbol: Symbol,
    original: Any,
    ctx: mx.Context,
    args: Any,
    args_grad: Any = None,
    grad_req: Any = "write",
    aux_states: Any = None,
    group2ctx: Any = None,
    shared_exec: Any = None,
) -> Bind:
    """A call of ``Symbol.bind``; ``original`` is MXNet's own."""

    def call(bound: Symbol) -> mx.executor.Executor:
        return original(bound, ctx, args, args_grad, grad_req, aux_states, group2ctx, shared_exec)

    def binding() -> Binding:
        return _binding_of_arrays(symbol, args, args_grad, grad_req, aux_states)

    untouched = _why_untouched(symbol, grad_req, group2ctx, None)
    if args_grad is None or not args_grad:
        untouched = untouched or "no argument needs a gradient"
    if any(array.stype != "default" for arrays in (args, args_grad) for array in _arrays(arrays)):
        untouched = untouched or "sparse arguments"
    return Bind(symbol, ctx, call, binding, untouched)


Attempt = Callable[[Callable[[Options], Any], Callable[[], Any]], Any]


@dataclass(frozen=True)
class Owner:
    """Who wants plans: an executor that plans again later asks here.

    ``attempt(action, stock)`` is ``action(options)``, or what the owner wants where that fails. ``strict`` is as the
    user said.
    """

    attempt: Attempt
    strict: bool


def with_plan(
    request: Bind,
    options: Options,
    record: Callable[[Plan], None] | None = None,
    owner: Owner | None = None,
) -> mx.executor.Executor:
    """Binds the symbol with a plan applied; the executor shows the user's symbol. ``record`` receives the plan.

    Raises:
        BudgetError, OptionError: the user's wish cannot be met.
        EchoError: anything else, under ``strict``; otherwise that costs a warning, and the symbol is bound as it is.
    """
    with own_binds():
        return _with_plan(request, options, record, owner or _own(options))


def _own(options: Options) -> Owner:
    def attempt(action: Callable[[Options], Any], stock: Callable[[], Any]) -> Any:
        return or_smallest(action, options, options.strict, logger.warning)

    return Owner(attempt, options.strict)


def or_smallest(
    action: Callable[[Options], _T], options: Options, strict: bool, warn: Callable[[str], None]
) -> _T:
    """The action; where its budget is out of reach and the user is not ``strict``, with the smallest plan there is."""
    try:
        return action(options)
    except BudgetError as error:
        if strict:
            raise
        warn(f"echo: {error}. The smallest plan is used.")
        reachable, bound = error.reachable, options.overhead_bound
    try:
        return action(replace(options, memory_budget=reachable))
    except BudgetError:  # aiming at another budget, the search came out somewhere else
        return action(replace(options, memory_budget=None, max_overhead=bound))


def _with_plan(
    request: Bind, options: Options, record: Callable[[Plan], None] | None, owner: Owner
) -> mx.executor.Executor:
    user = plain(request.symbol)
    if request.untouched:
        logger.debug("echo: bound as it is: %s", request.untouched)
        return request.call(user)
    graph = graph_of(request.symbol)
    found = find_plan(graph, request.binding, request.ctx, options, details=record is not None)
    if found is None:
        return request.call(user)
    if record is not None:
        record(found[0])
    executor = _bound(found, user, request.call)
    road = _Road(user, request.ctx, owner.attempt, record)
    return planned_executor(executor, Applied(graph, found[1], shapes_of(executor), owner.strict, road))


@dataclass(frozen=True)
class _Road:
    """How an executor that was bound with a plan is bound again (`echo.runtime.executor.Road`)."""

    user: Symbol
    ctx: mx.Context
    attempt: Attempt
    record: Callable[[Plan], None] | None

    def replan(self, binding: Binding) -> Graph | None:
        graph, details = graph_of(self.user), self.record is not None
        with own_binds():
            found = self.attempt(
                lambda options: find_plan(graph, lambda: binding, self.ctx, options, details=details), lambda: None
            )
        if found is None:
            return None
        if self.record is not None:
            self.record(found[0])
        return found[1]  # type: ignore[no-any-return]

    def confirms(self, graph: Graph, binding: Binding) -> bool:
        with own_binds():
            session = MxnetSession(graph_of(self.user), binding, self.ctx)
            own = session.oracle(graph_of(self.user), session.match_range)
            found = session.oracle(graph, session.match_range)
        return found[0] <= own[0] and found[1] == own[1]

    def bind(self, bound: Graph | Symbol, *args: Any, **more: Any) -> mx.executor.Executor:
        symbol = symbol_of(bound) if isinstance(bound, Graph) else bound
        with own_binds():
            return Symbol.bind(symbol, *args, **more)


def _bound(
    found: tuple[Plan, Graph], user: Symbol, call: Callable[[Symbol], mx.executor.Executor]
) -> mx.executor.Executor:
    plan, graph = found
    if plan.changes_nothing:
        return call(user)
    with match_range(plan.match_range if plan.applied == "mirror" else None):
        executor = call(symbol_of(graph))
    executor._symbol = user
    return executor


def find_plan(
    graph: Graph,
    binding: Callable[[], Binding],
    ctx: mx.Context,
    options: Options,
    runner: str = EXECUTOR,
    details: bool = True,
) -> tuple[Plan, Graph] | None:
    """As `planned`, with one line in the log. None, and a warning, where that fails; None inside of an operator.

    Raises:
        BudgetError, OptionError: the user's wish cannot be met.
        EchoError: anything else, under ``strict``.
    """
    if inside_operator():
        logger.debug("echo: bound as it is: inside of a Custom operator")
        return None
    try:
        found = planned(graph, binding(), ctx, options, runner, details)
    except (BudgetError, OptionError):
        raise
    except EchoError as error:
        if options.strict:
            raise
        logger.warning("echo: bound without a plan (strict=True raises): %s", error)
        return None
    logger.info("echo: %s", found[0].notes[-1] if found[0].changes_nothing else found[0].summary())
    return found


def plain(symbol: Symbol) -> Symbol:
    """A copy of the user's symbol without the planning."""
    return Symbol.__deepcopy__(symbol, None)


def inside_operator() -> bool:
    """Whether this thread is one that MXNet started, to run a Custom operator.

    Nothing may be planned there: planning runs operators, which may wait for those behind the Custom operator, and it
    holds a lock, for which the Custom operator would wait.
    """
    return isinstance(threading.current_thread(), threading._DummyThread)


def planned(
    graph: Graph,
    binding: Binding,
    ctx: mx.Context,
    options: Options,
    runner: str = EXECUTOR,
    details: bool = True,
) -> tuple[Plan, Graph]:
    """The plan of a graph that is bound like this, and the graph to bind. Plans are remembered."""
    with _plans_lock.held(), own_binds(), _without_garbage_collection():
        session = MxnetSession(graph, binding, ctx, runner)
        key = plan_cache.key_of([session.fingerprint, str(session.hook), session.device_key, options.key, str(details)])
        if key not in _plans:
            found = plan_cache.load(key, graph) or _search(Request(graph, options, session, details=details), key)
            while len(_plans) >= _MOST_PLANS:
                del _plans[next(iter(_plans))]
            _plans[key] = found
        return _plans[key]


def _search(request: Request, key: str) -> tuple[Plan, Graph]:
    family, own = (request.frontend.family, request.options.key), request.frontend.fingerprint
    known, hint = _hints.get(family, (own, None))
    with progress() as show:
        # the same graph is searched as it was before: what comes out never depends on who asked first
        plan, graph, found = pipeline.plan(replace(request, progress=show, hint=None if known == own else hint))
    _hints.setdefault(family, (own, found))
    plan_cache.save(key, plan, graph)
    return plan, graph


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Planning makes many small objects and no cycles; looking for cycles among them takes a fifth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _why_untouched(symbol: Symbol, grad_req: Any, group2ctx: Any, stype_dict: Any) -> str:
    if all(request == "null" for request in grad_reqs(symbol.list_arguments(), grad_req)):
        return "no argument needs a gradient"
    if group2ctx:
        return "group2ctx spreads the graph over several devices"
    if any(kind != "default" for kind in (stype_dict or {}).values()) or _has_sparse_variables(symbol):
        return "sparse arguments"
    return ""


def _has_sparse_variables(symbol: Symbol) -> bool:
    default = str(mx.ndarray.ndarray._STORAGE_TYPE_DEFAULT)
    return any(attrs.get("__storage_type__", default) != default for attrs in symbol.attr_dict().values())


def _binding_of_arrays(symbol: Symbol, args: Any, args_grad: Any, grad_req: Any, aux_states: Any) -> Binding:
    names, aux_names = symbol.list_arguments(), symbol.list_auxiliary_states()
    arrays = list(_in_order(names, args))
    aux = list(_in_order(aux_names, aux_states or []))
    requests = list(grad_reqs(names, grad_req))
    given = dict(zip(names, _in_order(names, args_grad, optional=True)))
    requests = [request if given.get(name) is not None else "null" for name, request in zip(names, requests)]
    return Binding.of_arrays(arrays, aux, requests)


def _arrays(given: Any) -> list[Any]:
    values = given.values() if isinstance(given, Mapping) else given or ()
    return [array for array in values if isinstance(array, mx.nd.NDArray)]


def _in_order(names: list[str], arrays: Any, optional: bool = False) -> Iterator[Any]:
    if isinstance(arrays, Mapping):
        return (arrays.get(name) if optional else arrays[name] for name in names)
    return iter(arrays)
