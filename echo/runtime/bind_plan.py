"""The plan that a bind gets, and the pool of memory that binds share."""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import logging
import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import Callable, NamedTuple, Sequence

import mxnet as mx

from echo import native
from echo.frontend.capture import chunk_bytes
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import Binding, symbol_of
from echo.ir.graph import Graph
from echo.ir.training_graph import EXECUTOR
from echo.passes.analysis import FindCandidates
from echo.passes.request import Request
from echo.planning.plan_cache import Found
from echo.planning.planner import Planner
from echo.plans.decisions import marked
from echo.plans.options import Options
from echo.policies.problem import WarmStart
from echo.runtime.bind_request import BindRequest, binding_of
from echo.runtime.executor import PlannedExecutor
from echo.runtime.foresight import FORESIGHT

# The plan that a bind gets: one made for it alone, or one that follows the bind whose memory it shares.

logger = logging.getLogger("echo")
PLANNER = Planner()  # of the process


class Choice(NamedTuple):
    """The plan to bind with, None where there is none, and the pool of the new executor, where it is known."""

    planned: Found | None = None
    pool: Pool | None = None


NOTHING = Choice()


def plan_bind(graph: Graph, request: BindRequest, options: Options, details: bool) -> Choice:
    """Has the graph of a bind planned, and finds the pool of the new executor.

    A bind that shares a pool follows the choice of the pool's owner, unless a plan of its own makes the pool grow less.
    """
    session = session_of(graph, request.binding, request.ctx)

    def find(leader: Leader | None) -> Found | None:
        return _plan(session, options, details, leader)

    def chunks_of(planned: Found) -> Sequence[int]:
        if planned.chunks is not None:
            return planned.chunks
        return chunk_bytes(symbol_of(planned.graph), request.binding(), request.ctx)

    pool = pool_of(request.shared, request.ctx)
    leader = leader_of(request.shared) if pool is not None and PLANNER.may_follow(options) else None
    planned = find(leader)
    if planned is None or pool is None:
        _tell(planned)
        return Choice(planned, None if planned is None or planned.chunks is None else Pool(planned.chunks))
    chunks = chunks_of(planned)
    if leader is not None and pool.growth(chunks) and (independent := find(None)) is not None:
        choices = (planned, chunks), (independent, chunks_of(independent))
        planned, chunks = min(choices, key=lambda choice: pool.growth(choice[1]))
    _tell(planned)
    return Choice(planned, pool.share(chunks))


def find_plan(
    graph: Graph,
    binding: Callable[[], Binding],
    ctx: mx.Context,
    options: Options,
    runner: str = EXECUTOR,
    details: bool = True,
    further: bool = False,
) -> Found | None:
    """The plan of a graph that is bound like this; the summary of the process counts it. None inside of an operator.

    ``further`` shapes of a model are paid for as `Planner.plan` says.
    """
    planned = _plan(session_of(graph, binding, ctx, runner), options, details, further=further)
    _tell(planned)
    return planned


def follow_plan(
    graph: Graph, binding: Callable[[], Binding], ctx: mx.Context, options: Options, runner: str = EXECUTOR
) -> Found | None:
    """As `find_plan`, without a search: the plan of other shapes of this graph; None if it does not hold for these."""
    if inside_operator() or not PLANNER.may_follow(options):
        return None
    planned = PLANNER.follow(session_of(graph, binding, ctx, runner), options)
    _tell(planned)
    return planned


def _tell(planned: Found | None) -> None:
    if planned is not None:
        PLANNER.summary.add(planned.plan)
        FORESIGHT.planned(planned.plan)


def session_of(
    graph: Graph, binding: Callable[[], Binding], ctx: mx.Context, runner: str = EXECUTOR
) -> Callable[[], MxnetSession]:
    """The session of a graph that is bound like this, made when it is first asked for."""
    return functools.lru_cache(maxsize=None)(lambda: MxnetSession(graph, binding(), ctx, runner))


def _plan(
    session: Callable[[], MxnetSession],
    options: Options,
    details: bool,
    leader: Leader | None = None,
    further: bool = False,
) -> Found | None:
    if inside_operator():
        logger.debug("echo: bound as it is: inside of a Custom operator")
        return None
    return PLANNER.plan(session, options, details, leader, further)


def inside_operator() -> bool:
    """Whether this thread is one that MXNet started, to run a Custom operator.

    Nothing may be planned there: planning runs operators, which may wait for those behind the Custom operator, and it
    holds a lock, for which the Custom operator would wait.
    """
    return isinstance(threading.current_thread(), threading._DummyThread)


# The memory that executors share, as the lengths of a BucketingModule do: the chunks that a bind reuses, and adds.
#
# MXNet gives each chunk that a bind requests, the largest first, the smallest free one of the pool that is large
# enough (GraphExecutor::InitDataEntryMemory), and adds one to the pool where none is. So two plans of few bytes may
# need many together, where one stashes what the other recomputes. A plan that follows the pool's owner reuses the
# owner's chunks.

_ALIGNED = 4  # MXNet allocates chunks as arrays of floats


class Pool:
    """``chunks`` are the bytes of each chunk in an executor's pool; each executor that shares it adds some."""

    def __init__(self, chunks: Sequence[int]) -> None:
        self.chunks = [_aligned(size) for size in chunks]

    def growth(self, requested: Sequence[int]) -> int:
        """Bytes by which a bind that requests these chunks makes the pool grow."""
        return sum(self._match(requested)[1])

    def share(self, requested: Sequence[int]) -> Pool:
        """Adds the chunks that a bind requests beside the pool, and returns the pool of the new executor."""
        reused, new = self._match(requested)
        self.chunks += new
        return Pool(reused + new)

    def _match(self, requested: Sequence[int]) -> tuple[list[int], list[int]]:
        """The sizes of the pool's chunks that MXNet reuses for these, and of those that it adds."""
        free = sorted(self.chunks)
        reused: list[int] = []
        new: list[int] = []
        for size in sorted(requested, reverse=True):
            place = bisect.bisect_left(free, size)
            if place < len(free):
                reused.append(free.pop(place))
            else:
                new.append(_aligned(size))
        return reused, new


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def pool_of(executor: mx.executor.Executor | None, ctx: mx.Context) -> Pool | None:
    """The pool of an executor with a plan, for a bind on this device; None where it is not known."""
    if not isinstance(executor, PlannedExecutor) or executor._ctx != ctx or not native.installed():
        return None
    if executor._pool is None:
        symbol = symbol_of(executor._applied.graph)
        executor._pool = Pool(chunk_bytes(symbol, binding_of(executor), executor._ctx))
    return executor._pool


@dataclass(frozen=True)
class Leader:
    """A bind whose choice another bind of the same model may follow: ``graph`` is ``base`` with the marks of a plan."""

    base: Graph
    graph: Graph
    binding: Binding
    ctx: mx.Context
    _warm_starts: dict[str, WarmStart] = field(default_factory=dict, compare=False)

    @cached_property
    def key(self) -> str:
        """A digest of the planned graph and its binding, by which plans of followers are remembered."""
        value = self.graph.to_json()
        text = json.dumps([value["nodes"], value["heads"], repr(self.binding.key)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def warm_start(self, options: Options) -> WarmStart:
        """The warm start that a follower's search with these options gets: what the leader recomputes."""
        if options.key not in self._warm_starts:
            self._warm_starts[options.key] = self._warm_start(options)
        return self._warm_starts[options.key]

    def _warm_start(self, options: Options) -> WarmStart:
        session = MxnetSession(self.base, self.binding, self.ctx)
        training = session.differentiate()
        candidates = FindCandidates().run(Request(self.base, options, session), training)
        recomputed = marked(self.base, self.graph)
        chosen = {number for number, node in training.operators() if node.forward and node.user in recomputed}
        return WarmStart.of(training, candidates.light, chosen)


def leader_of(executor: mx.executor.Executor) -> Leader | None:
    """This executor as a leader of others, None where its graph has no marks of a plan."""
    if not isinstance(executor, PlannedExecutor) or executor._applied.graph == executor._applied.base:
        return None
    if executor._leader is None:
        applied = executor._applied
        executor._leader = Leader(applied.base, applied.graph, binding_of(executor), executor._ctx)
    return executor._leader
