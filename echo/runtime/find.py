"""Which plan a bind gets: its own, or that of the bind whose memory it shares; and where the log says so."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Callable, Optional, Sequence, Tuple

import mxnet as mx

from echo.frontend.capture import chunk_bytes
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import Binding, symbol_of
from echo.ir.graph import Graph
from echo.ir.training_graph import EXECUTOR
from echo.planning.service import Planner
from echo.planning.store import Found
from echo.plans.options import Options
from echo.plans.summary import of_process
from echo.runtime.bind_call import Bind
from echo.runtime.pool import Leader, Pool, leader_of, pool_of

logger = logging.getLogger("echo")
PLANNER = Planner()  # of the process
Choice = Tuple[Optional[Found], Optional[Pool]]
NOTHING: Choice = (None, None)


def plan_bind(graph: Graph, request: Bind, options: Options, details: bool) -> Choice:
    """The plan to bind with, None where there is none, and the pool of what is bound, where it is known.

    Whoever shares a pool follows the choice of its owner if that makes it grow less than a choice of one's own.
    """
    session = session_of(graph, request.binding, request.ctx)

    def find(leader: Leader | None) -> Found | None:
        return _found(session, options, details, leader)

    def wanted(found: Found) -> Sequence[int]:
        known = found.chunks
        return chunk_bytes(symbol_of(found.graph), request.binding(), request.ctx) if known is None else known

    pool = pool_of(request.shared, request.ctx)
    leader = leader_of(request.shared) if pool is not None and _may_follow(options) else None
    found = find(leader)
    if found is None or pool is None:
        _tell(found)
        return found, None if found is None or found.chunks is None else Pool(found.chunks)
    chunks = wanted(found)
    if leader is not None and pool.growth(chunks) and (own := find(None)) is not None:
        found, chunks = min((found, chunks), (own, wanted(own)), key=lambda choice: pool.growth(choice[1]))
    _tell(found)
    return found, pool.share(chunks)


def _may_follow(options: Options) -> bool:
    """Whether a plan with these options can follow another: budgets depend on lengths, and policies on themselves."""
    return options.memory_budget is None and options.policy == "search"


def find_plan(
    graph: Graph,
    binding: Callable[[], Binding],
    ctx: mx.Context,
    options: Options,
    runner: str = EXECUTOR,
    details: bool = True,
) -> Found | None:
    """The plan of a graph that is bound like this, told to the log. None inside of an operator."""
    found = _found(session_of(graph, binding, ctx, runner), options, details)
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


def _found(
    session: Callable[[], MxnetSession], options: Options, details: bool, leader: Leader | None = None
) -> Found | None:
    if inside_operator():
        logger.debug("echo: bound as it is: inside of a Custom operator")
        return None
    return PLANNER.plan(session, options, details, leader)


def inside_operator() -> bool:
    """Whether this thread is one that MXNet started, to run a Custom operator.

    Nothing may be planned there: planning runs operators, which may wait for those behind the Custom operator, and it
    holds a lock, for which the Custom operator would wait.
    """
    return isinstance(threading.current_thread(), threading._DummyThread)
