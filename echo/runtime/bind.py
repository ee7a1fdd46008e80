"""Binding with a plan: how an optimized symbol, or any symbol in transparent mode, becomes an executor."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import json
import logging
import os
import threading
import weakref
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet.symbol import Symbol

from echo import pipeline
from echo.errors import BudgetError, one_line
from echo.estimators.kept import with_kept
from echo.frontend.apart import measuring
from echo.frontend.capture import chunk_bytes, match_range, training_graph
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import Binding, graph_of, symbol_of
from echo.ir.graph import Graph
from echo.ir.training_graph import EXECUTOR, TrainingGraph
from echo.passes.confirm import Confirm
from echo.passes.request import Request
from echo.passes.rewrite import Rewritten
from echo.planning import store
from echo.planning.reuse import fitting
from echo.planning.store import Found
from echo.planning.what_if import Flips
from echo.plans.decisions import Decision
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.plans.summary import of_process
from echo.plans.why import Flip, Flipper
from echo.policies.warm_start import Hint
from echo.runtime.bind_call import Bind
from echo.runtime.executor import Applied, PlannedExecutor, planned_executor, shapes_of
from echo.runtime.on_error import REPORT, or_smallest, or_stock
from echo.runtime.pool import Example, Pool, example_of, pool_of
from echo.runtime.rehearsal import Verifier
from echo.system.deadline import Deadline
from echo.system.locks import Lock
from echo.system.progress import progress
from echo.system.trim import trim

logger = logging.getLogger("echo")
_Choice = Tuple[Optional[Found], Optional[Pool]]
_NOTHING: _Choice = (None, None)
_plans: dict[str, Found | BudgetError] = {}
_told: set[str] = set()  # twenty buckets that fail alike are one line
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
    user said, ``warn`` takes what he is told.
    """

    attempt: Attempt
    strict: bool
    warn: Callable[[str], None]


def with_plan(
    request: Bind,
    options: Options,
    record: Callable[[Plan], None] | None = None,
    owner: Owner | None = None,
) -> mx.executor.Executor:
    """Binds the symbol with a plan applied; the executor shows the user's symbol. ``record`` receives the plan.

    Raises:
        BudgetError, OptionError, PlanError: the user's wish cannot be met.
        Exception: anything else, under ``strict`` or where an ``owner`` knows what to do then; otherwise that costs a
            warning, and the symbol is bound as it is.
    """
    with own_binds():
        return _with_plan(request, options, record, owner)


def _own(options: Options) -> Owner:
    def attempt(action: Callable[[Options], Any], stock: Callable[[], Any]) -> Any:
        def closest() -> Any:
            return or_smallest(action, options, options.strict, logger.warning)

        return or_stock(closest, stock, options.strict, logger.warning)

    return Owner(attempt, options.strict, logger.warning)


def _with_plan(
    request: Bind, options: Options, record: Callable[[Plan], None] | None, asked: Owner | None
) -> mx.executor.Executor:
    owner = asked or _own(options)
    user = plain(request.symbol)
    if request.untouched:
        logger.debug("echo: bound as it is: %s", request.untouched)
        return request.call(user)
    graph = graph_of(request.symbol)
    details = record is not None

    def find(given: Options) -> _Choice:
        return plan_bind(graph, request, given, details)

    if asked is None:  # who asks tries that himself
        choice = or_stock(lambda: find(options), lambda: _NOTHING, owner.strict, owner.warn)
    else:
        choice = find(options)
    executor, (found, pool) = _bound_somehow(choice, functools.partial(_unfused, find, options), user, request, owner)
    if found is None:
        return executor
    if record is not None:
        record(found.plan)
    road = _Road(user, request.ctx, owner.attempt, record)
    verifier = Verifier(options, found.plan, owner.strict) if options.verify else None
    applied = Applied(graph, found.base, found.graph, shapes_of(executor), owner.strict, road, verifier)
    executor = planned_executor(executor, applied)
    if isinstance(executor, PlannedExecutor):
        executor._pool = pool
    return executor


def _unfused(find: Callable[[Options], _Choice], options: Options, found: Found) -> _Choice:
    """The plan without fused operators, where there were some that the user did not choose himself."""
    return find(replace(options, fuse=False)) if found.plan.fused and not options.plans else _NOTHING


def _bound_somehow(
    choice: _Choice, next_best: Callable[[Found], _Choice], user: Symbol, request: Bind, owner: Owner
) -> tuple[mx.executor.Executor, _Choice]:
    """What is bound, and the choice that was: where MXNet refuses a graph, the next best one, at last the user's own.

    Raises:
        MXNetError: the user's own graph cannot be bound like this either; or, under ``strict``, the planned one.
    """
    found = choice[0]
    if found is None or found.plan.changes_nothing:
        return request.call(user), choice
    try:
        return _bound(found, user, request), choice
    except Exception as error:
        if owner.strict:
            raise
        why = one_line(error)
    with contextlib.suppress(Exception):
        other = next_best(found)
        if other[0] is not None:
            executor = _bound(other[0], user, request)
            owner.warn(f"echo: bound without fused operators: {why}. {REPORT}.")
            return executor, other
    executor = request.call(user)  # where the call itself is wrong, MXNet says so here
    owner.warn(f"echo: bound without a plan: {why}. {REPORT}.")
    return executor, _NOTHING


def plan_bind(graph: Graph, request: Bind, options: Options, details: bool) -> _Choice:
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
        _tell(found)
        return found, None if found is None or found.chunks is None else Pool(found.chunks)
    chunks = wanted(found)
    if example is not None and pool.growth(chunks) and (own := find(None)) is not None:
        found, chunks = min((found, chunks), (own, wanted(own)), key=lambda choice: pool.growth(choice[1]))
    _tell(found)
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
            training = with_kept(request.frontend.differentiate(), request.frontend.device)
            return Confirm().run(request, training, Rewritten(graph, None)).accepted

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
    """As `planned`, and told to the log. None inside of an operator."""
    found = _find_plan(session_of(graph, binding, ctx, runner), options, details)
    _tell(found)
    return found


def _tell(found: Found | None) -> None:
    if found is not None:
        of_process.add(found.plan)


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
    return planned(session, options, details, example)


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
    with _plans_lock.held(), own_binds(), without_garbage_collection(), measuring():
        own = session()
        deadline = Deadline.after(options.max_planning)
        request = Request(own.graph, options, own, details=details, follows=example is not None, deadline=deadline)
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
        with _plans_lock.held(), own_binds(), measuring():
            return flips(decision)

    return flip


def _remembered(request: Request, session: MxnetSession, example: Example | None) -> Found:
    names = json.dumps([node.name for node in request.graph.nodes])  # they are in the plan that the user reads
    asked = [session.subject.fingerprint, names, str(session.hook), session.device_key]
    asked += [request.options.key, str(request.details), session.why_no_fusion if request.options.fuse else ""]
    asked += [f"{name}={text}" for name, text in sorted(os.environ.items()) if name.startswith(("MXNET_", "NNVM_"))]
    key = store.key_of(asked if example is None else [*asked, example.key])
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
    found = store.load(key, request.graph, session)
    if found is None:
        try:
            made = _search(request) if example is None else _planned(request, _hint_of(example, request))
        except BudgetError as error:
            return copy.copy(error)
        found = Found(made.plan, made.graph, made.base, session.on(made.base).chunks(made.graph))
        for text in found.plan.failed:
            advice = "max_planning=None waits for the best" if text == request.late_line else REPORT
            logger.log(logging.DEBUG if text in _told else logging.WARNING, "echo: %s. %s.", text, advice)
            _told.add(text)
        if not found.plan.failed:  # by chance, or for lack of time: the next start tries again
            store.save(key, found.plan, found.chunks)
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
    try:
        with progress() as show:
            return pipeline.plan(replace(request, progress=show, hint=hint))
    finally:
        trim()


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
