"""Binding with a plan: how an optimized symbol, or any symbol in transparent mode, becomes an executor."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import json
import logging
import threading
import weakref
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import mxnet as mx
from mxnet.symbol import Symbol

from echo import pipeline, plan_cache
from echo.errors import BudgetError, EchoError, OptionError, PlanError
from echo.flip import Flips
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import Binding, graph_of, symbol_of
from echo.frontend.training import chunk_bytes, match_range, training_graph
from echo.graph import Graph
from echo.locks import Lock
from echo.options import Options
from echo.passes.confirm import Confirm
from echo.passes.hint import Hint
from echo.passes.request import Request
from echo.passes.rewrite import Rewritten
from echo.plan import Decision, Plan
from echo.plan_cache import Found
from echo.report.progress import progress
from echo.reuse import fitting
from echo.runtime.calls import Bind
from echo.runtime.executor import Applied, PlannedExecutor, planned_executor, shapes_of
from echo.runtime.fallback import or_smallest
from echo.runtime.pool import Example, Pool, example_of, pool_of
from echo.runtime.rehearsal import Verifier
from echo.training_graph import EXECUTOR, TrainingGraph
from echo.why import Flip, Flipper

logger = logging.getLogger("echo")
_plans: dict[str, Found | BudgetError] = {}
_hints: dict[tuple[str, str], _First] = {}  # by model
_plans_lock = Lock()
_MOST_PLANS = 64  # kept in memory: as many shapes of one model as buckets are usual


class _First(NamedTuple):
    """The first graph of a model that was searched, what is bound for it as long as somebody holds that, its hint."""

    fingerprint: str
    bound: Callable[[], Graph | None]
    hint: Hint | None


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
        BudgetError, OptionError, PlanError: the user's wish cannot be met.
        EchoError: anything else, under ``strict``; otherwise that costs a warning, and the symbol is bound as it is.
    """
    with own_binds():
        return _with_plan(request, options, record, owner or _own(options))


def _own(options: Options) -> Owner:
    def attempt(action: Callable[[Options], Any], stock: Callable[[], Any]) -> Any:
        return or_smallest(action, options, options.strict, logger.warning)

    return Owner(attempt, options.strict)


def _with_plan(
    request: Bind, options: Options, record: Callable[[Plan], None] | None, owner: Owner
) -> mx.executor.Executor:
    user = plain(request.symbol)
    if request.untouched:
        logger.debug("echo: bound as it is: %s", request.untouched)
        return request.call(user)
    graph = graph_of(request.symbol)
    found, pool = plan_bind(graph, request, options, details=record is not None)
    if found is None:
        return request.call(user)
    if record is not None:
        record(found.plan)
    executor = _bound(found, user, request)
    road = _Road(user, request.ctx, owner.attempt, record)
    verifier = Verifier(options, found.plan, owner.strict) if options.verify else None
    applied = Applied(graph, found.base, found.graph, shapes_of(executor), owner.strict, road, verifier)
    executor = planned_executor(executor, applied)
    if isinstance(executor, PlannedExecutor):
        executor._pool = pool
    return executor


def plan_bind(
    graph: Graph, request: Bind, options: Options, details: bool
) -> tuple[Found | None, Pool | None]:
    """The plan to bind with, None where there is none, and the pool of what is bound, where it is known.

    Whoever shares a pool follows the choice of its owner if that makes it grow less than a choice of one's own.
    """
    session = session_of(graph, request.binding, request.ctx)

    def find(example: Example | None) -> Found | None:
        return _find_plan(session, options, details, example)

    def wanted(found: Found) -> Sequence[int]:
        known = found.chunks
        return chunk_bytes(symbol_of(found.graph), request.binding(), request.ctx) if known is None else known

    pool = pool_of(request.shared, request.ctx)
    example = example_of(request.shared) if pool is not None and _may_follow(options) else None
    found = find(example)
    if found is None or pool is None:
        _log(found)
        return found, None if found is None or found.chunks is None else Pool(found.chunks)
    chunks = wanted(found)
    if example is not None and pool.growth(chunks) and (own := find(None)) is not None:
        found, chunks = min((found, chunks), (own, wanted(own)), key=lambda choice: pool.growth(choice[1]))
    _log(found)
    return found, pool.share(chunks)


def _may_follow(options: Options) -> bool:
    """Whether a plan with these options can follow another: budgets depend on lengths, and policies on themselves."""
    return options.memory_budget is None and options.policy == "search"


@dataclass(frozen=True)
class _Road:
    """How an executor that was bound with a plan is bound again (`echo.runtime.executor.Road`)."""

    user: Symbol
    ctx: mx.Context
    attempt: Attempt
    record: Callable[[Plan], None] | None

    def replan(self, binding: Binding) -> tuple[Graph, Graph] | None:
        graph, details = graph_of(self.user), self.record is not None
        with own_binds():
            found = self.attempt(
                lambda options: find_plan(graph, lambda: binding, self.ctx, options, details=details), lambda: None
            )
        if found is None:
            return None
        if self.record is not None:
            self.record(found.plan)
        return found.base, found.graph

    def differentiate(self, graph: Graph, binding: Binding) -> TrainingGraph:
        with own_binds():
            return training_graph(graph, binding, self.ctx)

    def confirms(self, base: Graph, graph: Graph, binding: Binding) -> bool:
        def confirmed(options: Options) -> bool:
            request = Request(base, options, MxnetSession(base, binding, self.ctx))
            return Confirm().run(request, request.frontend.differentiate(), Rewritten(graph, None)).accepted

        with own_binds():
            return bool(self.attempt(confirmed, lambda: False))

    def bind(self, bound: Graph | Symbol, *args: Any, **more: Any) -> mx.executor.Executor:
        symbol = symbol_of(bound) if isinstance(bound, Graph) else bound
        with own_binds():
            return Symbol.bind(symbol, *args, **more)


def _bound(found: Found, user: Symbol, request: Bind) -> mx.executor.Executor:
    plan, graph = found.plan, found.graph
    if plan.changes_nothing:
        return request.call(user)
    with match_range(plan.match_range if plan.applied == "mirror" else None):
        executor = request.call(symbol_of(graph), request.binding() if plan.fused else None)
    executor._symbol = user
    return executor


def find_plan(
    graph: Graph,
    binding: Callable[[], Binding],
    ctx: mx.Context,
    options: Options,
    runner: str = EXECUTOR,
    details: bool = True,
) -> Found | None:
    """As `planned`, with one line in the log. None, and a warning, where that fails; None inside of an operator.

    Raises:
        BudgetError, OptionError, PlanError: the user's wish cannot be met.
        EchoError: anything else, under ``strict``.
    """
    found = _find_plan(session_of(graph, binding, ctx, runner), options, details)
    _log(found)
    return found


def _log(found: Found | None) -> None:
    if found is not None:
        plan = found.plan
        logger.info("echo: %s", plan.notes[-1] if plan.changes_nothing else plan.summary())


def session_of(
    graph: Graph, binding: Callable[[], Binding], ctx: mx.Context, runner: str = EXECUTOR
) -> Callable[[], MxnetSession]:
    """The session of a graph that is bound like this, made when it is first asked for."""
    return functools.lru_cache(maxsize=None)(lambda: MxnetSession(graph, binding(), ctx, runner))


def _find_plan(
    session: Callable[[], MxnetSession], options: Options, details: bool, example: Example | None = None
) -> Found | None:
    if inside_operator():
        logger.debug("echo: bound as it is: inside of a Custom operator")
        return None
    try:
        return planned(session, options, details, example)
    except (BudgetError, OptionError, PlanError):
        raise
    except EchoError as error:
        if options.strict:
            raise
        logger.warning("echo: bound without a plan (strict=True raises): %s", error)
        return None


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
    session: Callable[[], MxnetSession], options: Options, details: bool = True, example: Example | None = None
) -> Found:
    """The plan of a `session_of` a graph, and the graph to bind: the user's plan, or a remembered one.

    Plans are remembered, and budgets out of reach. With an ``example`` nothing is searched: its choice is taken.

    Raises:
        PlanError: the user gave plans, and none was made for this.
    """
    with _plans_lock.held(), own_binds(), without_garbage_collection():
        own = session()
        request = Request(own.graph, options, own, details=details, follows=example is not None)
        if options.plans:
            plan, graph, base = fitting(options.plans, own.graph, own)
            found = Found(plan, graph, base, own.on(base).chunks(graph))
        else:
            found = _remembered(request, own, example)
        # who keeps the plan does not keep a training graph
        flipper = _flipper(replace(request, graph=found.base, frontend=own.on(found.base).anew()), found.plan)
        return found._replace(plan=found.plan.with_flipper(flipper))


def _flipper(request: Request, plan: Plan) -> Flipper:
    flips = Flips(request, plan)

    def flip(decision: Decision) -> Flip:
        with _plans_lock.held(), own_binds():
            return flips(decision)

    return flip


def _remembered(request: Request, session: MxnetSession, example: Example | None) -> Found:
    names = json.dumps([node.name for node in request.graph.nodes])  # they are in the plan that the user reads
    asked = [session.subject.fingerprint, names, str(session.hook), session.device_key]
    asked += [request.options.key, str(request.details), session.why_no_fusion if request.options.fuse else ""]
    key = plan_cache.key_of(asked if example is None else [*asked, example.key])
    if key not in _plans:
        found = _loaded_or_made(key, request, session, example)
        while len(_plans) >= _MOST_PLANS:
            del _plans[next(iter(_plans))]
        _plans[key] = found
    known = _plans[key]
    if isinstance(known, BudgetError):
        raise copy.copy(known)  # the one that is kept must not keep what its traceback refers to
    return known


def _loaded_or_made(
    key: str, request: Request, session: MxnetSession, example: Example | None
) -> Found | BudgetError:
    found = plan_cache.load(key, request.graph, session)
    if found is None:
        try:
            made = _search(request) if example is None else _planned(request, _hint_of(example, request))
        except BudgetError as error:
            return copy.copy(error)
        found = Found(made.plan, made.graph, made.base, session.on(made.base).chunks(made.graph))
        plan_cache.save(key, found.plan, found.chunks)
    return found


def _search(request: Request) -> pipeline.Planned:
    family, own = (request.frontend.family, request.options.key), request.frontend.subject.fingerprint
    first = _hints.get(family)
    # the same graph is searched as it was before: what comes out never depends on who asked first
    made = _planned(request, None if first is None or first.fingerprint == own else first.hint)
    _hints.setdefault(family, _First(own, weakref.ref(made.graph), made.hint))
    return made


def _hint_of(example: Example, request: Request) -> Hint:
    """What the example chose: known where it was the first that was searched, else read from its marks, as equal."""
    first = _hints.get((request.frontend.family, request.options.key))
    if first is None or first.hint is None or first.bound() is not example.graph:
        return example.hint(request.options)
    return first.hint


def _planned(request: Request, hint: Hint | None) -> pipeline.Planned:
    with progress() as show:
        return pipeline.plan(replace(request, progress=show, hint=hint))


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Planning makes many small objects and no cycles; looking for cycles among them takes a fifth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
