"""The memory that executors share, as the lengths of a BucketingModule do: what a bind finds there, and what it adds.

MXNet gives each chunk that a bind wants the smallest one of the pool that is large enough, the largest first
(GraphExecutor::InitDataEntryMemory); for what does not fit, the pool grows. So two plans of few bytes together may need
many, where one stashes what the other recomputes. A plan that follows the choice of the pool's owner wants its chunks.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Sequence

import mxnet as mx

from echo import native
from echo.frontend.capture import chunk_bytes
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import Binding, symbol_of
from echo.ir.graph import Graph
from echo.passes.candidates import FindCandidates
from echo.passes.request import Request
from echo.plans.marks import marked
from echo.plans.options import Options
from echo.policies.warm_start import WarmStart
from echo.runtime.executor import PlannedExecutor
from echo.runtime.shapes import binding_of

_ALIGNED = 4  # MXNet allocates chunks as arrays of floats


class Pool:
    """``chunks``: the bytes of each chunk of an executor's pool, which those who share it make grow."""

    def __init__(self, chunks: Sequence[int]) -> None:
        self.chunks = [_aligned(size) for size in chunks]

    def growth(self, wanted: Sequence[int]) -> int:
        """Bytes by which a bind that wants these chunks makes the pool grow."""
        return sum(self._given(wanted)[1])

    def share(self, wanted: Sequence[int]) -> Pool:
        """The pool of an executor that is bound with this one and wants these chunks."""
        found, new = self._given(wanted)
        self.chunks += new
        return Pool(found + new)

    def _given(self, wanted: Sequence[int]) -> tuple[list[int], list[int]]:
        """The chunks that are there, and the new ones."""
        free = sorted(self.chunks)
        found: list[int] = []
        new: list[int] = []
        for size in sorted(wanted, reverse=True):
            place = bisect.bisect_left(free, size)
            if place < len(free):
                found.append(free.pop(place))
            else:
                new.append(_aligned(size))
        return found, new


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def pool_of(executor: mx.executor.Executor | None, ctx: mx.Context) -> Pool | None:
    """What a bind on this device finds in the pool of an executor with a plan, None where that is not known."""
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
    _hints: dict[str, WarmStart] = field(default_factory=dict, compare=False)

    @cached_property
    def key(self) -> str:
        """Equal for leaders that say the same."""
        value = self.graph.to_json()
        text = json.dumps([value["nodes"], value["heads"], repr(self.binding.key)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def hint(self, options: Options) -> WarmStart:
        """What it chose."""
        if options.key not in self._hints:
            self._hints[options.key] = self._hint(options)
        return self._hints[options.key]

    def _hint(self, options: Options) -> WarmStart:
        session = MxnetSession(self.base, self.binding, self.ctx)
        training = session.differentiate()
        candidates = FindCandidates().run(Request(self.base, options, session), training)
        again = marked(self.base, self.graph)
        chosen = {number for number, node in training.operators() if node.forward and node.user in again}
        return WarmStart.of(training, candidates.light, chosen)


def leader_of(executor: mx.executor.Executor) -> Leader | None:
    """The choice that this executor was bound with, None where it has none."""
    if not isinstance(executor, PlannedExecutor) or executor._applied.graph == executor._applied.base:
        return None
    if executor._leader is None:
        applied = executor._applied
        executor._leader = Leader(applied.base, applied.graph, binding_of(executor), executor._ctx)
    return executor._leader
