"""The plan that a bind gets, and the pool of memory that binds share."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Callable, NamedTuple, Sequence

import mxnet as mx

from echo import native
from echo.frontend.capture import chunk_bytes
from echo.frontend.framework import MxnetFramework
from echo.frontend.symbols import Binding, symbol_of
from echo.ir.graph import Graph
from echo.ir.training_graph import Runner
from echo.planning.planner import Planner
from echo.planning.reuse import PlannedGraph
from echo.plans.options import Options
from echo.runtime.applied import BoundLeader, Pool
from echo.runtime.bind_request import BindRequest, binding_of
from echo.runtime.executor import PlannedExecutor
from echo.runtime.peak_prediction import PEAK_PREDICTION

logger = logging.getLogger("echo")
PLANNER = Planner()  # of the process


class BindPlan(NamedTuple):
    """The plan to bind with, None where there is none, and the pool of the new executor, where it is known."""

    planned: PlannedGraph | None = None
    pool: Pool | None = None


NO_PLAN = BindPlan()


def plan_bind(graph: Graph, request: BindRequest, options: Options, details: bool) -> BindPlan:
    """Has the graph of a bind planned, and finds the pool of the new executor.

    A bind that shares a pool follows the choice of the pool's owner, unless a plan of its own makes the pool grow less.
    """
    make_framework = framework_of(graph, request.binding, request.ctx)

    def find(leader: BoundLeader | None) -> PlannedGraph | None:
        return _plan(make_framework, options, details, leader)

    def chunks_of(planned: PlannedGraph) -> Sequence[int]:
        if planned.chunks is not None:
            return planned.chunks
        return chunk_bytes(symbol_of(planned.graph), request.binding(), request.ctx)

    pool = pool_of(request.shared, request.ctx)
    leader = leader_of(request.shared) if pool is not None and PLANNER.may_follow(options) else None
    planned = find(leader)
    if planned is None or pool is None:
        _tell(planned)
        return BindPlan(planned, None if planned is None or planned.chunks is None else Pool(planned.chunks))
    chunks = chunks_of(planned)
    if leader is not None and pool.growth(chunks) and (independent := find(None)) is not None:
        choices = (planned, chunks), (independent, chunks_of(independent))
        planned, chunks = min(choices, key=lambda choice: pool.growth(choice[1]))
    _tell(planned)
    return BindPlan(planned, pool.share(chunks))


def find_plan(
    graph: Graph,
    binding: Callable[[], Binding],
    ctx: mx.Context,
    options: Options,
    runner: Runner = Runner.EXECUTOR,
    details: bool = True,
    further: bool = False,
) -> PlannedGraph | None:
    """The plan of a graph that is bound like this; the summary of the process counts it.

    None inside of an operator; and, unless ``details`` are asked for, of a tiny graph that would gain nothing.

    ``further`` shapes of a model are paid for as `Planner.plan` says.
    """
    make_framework = framework_of(graph, binding, ctx, runner)  # made for this plan alone, and gone with it
    if not (details or inside_operator()) and PLANNER.has_nothing_to_gain(graph, make_framework, options):
        PLANNER.summary.add_unchanged()
        return None
    planned = _plan(make_framework, options, details, further=further)
    _tell(planned)
    return planned


def follow_plan(
    graph: Graph, binding: Callable[[], Binding], ctx: mx.Context, options: Options, runner: Runner = Runner.EXECUTOR
) -> PlannedGraph | None:
    """As `find_plan`, without a search: the plan of other shapes of this graph; None if it does not hold for these."""
    if inside_operator() or not PLANNER.may_follow(options):
        return None
    planned = PLANNER.follow(framework_of(graph, binding, ctx, runner), options)
    _tell(planned)
    return planned


def _tell(planned: PlannedGraph | None) -> None:
    if planned is not None:
        PLANNER.summary.add(planned.plan)
        PEAK_PREDICTION.planned(planned.plan)


def framework_of(
    graph: Graph, binding: Callable[[], Binding], ctx: mx.Context, runner: Runner = Runner.EXECUTOR
) -> Callable[[], MxnetFramework]:
    """Returns what makes the framework of a graph that is bound like this, once it is needed."""
    return functools.lru_cache(maxsize=None)(lambda: MxnetFramework(graph, binding(), ctx, runner))


def _plan(
    make_framework: Callable[[], MxnetFramework],
    options: Options,
    details: bool,
    leader: BoundLeader | None = None,
    further: bool = False,
) -> PlannedGraph | None:
    if inside_operator():
        logger.debug("echo: bound as it is: inside of a Custom operator")
        return None
    return PLANNER.plan(make_framework, options, details, leader, further)


def inside_operator() -> bool:
    """Whether this thread is one that MXNet started, to run a Custom operator.

    Nothing may be planned there: planning runs operators, which may wait for those after the Custom operator, and it
    holds a lock, for which the Custom operator would wait.
    """
    return isinstance(threading.current_thread(), threading._DummyThread)


def pool_of(executor: mx.executor.Executor | None, ctx: mx.Context) -> Pool | None:
    """The pool of an executor with a plan, for a bind on this device; None where it is not known."""
    if not isinstance(executor, PlannedExecutor) or executor._ctx != ctx or not native.installed():
        return None
    if executor._pool is None:
        symbol = symbol_of(executor._applied.graph)
        executor._pool = Pool(chunk_bytes(symbol, binding_of(executor), executor._ctx))
    return executor._pool


def leader_of(executor: mx.executor.Executor) -> BoundLeader | None:
    """This executor as a leader of others, None where its graph has no marks of a plan."""
    if not isinstance(executor, PlannedExecutor) or executor._applied.graph == executor._applied.base:
        return None
    if executor._leader is None:
        applied = executor._applied
        executor._leader = BoundLeader(applied.base, applied.graph, binding_of(executor), executor._ctx)
    return executor._leader
