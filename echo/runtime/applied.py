"""The graphs and the plan that an executor was bound with, and the memory that executors share."""

from __future__ import annotations

import bisect
import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ContextManager, Protocol, Sequence

import mxnet as mx
from mxnet.symbol import Symbol

from echo.frontend.framework import MxnetFramework
from echo.frontend.symbols import Binding, symbol_of
from echo.ir.graph import Graph, Node
from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph
from echo.passes.analysis import FindCandidates
from echo.passes.request import Request
from echo.plans.decisions import has_gradient_rules, marked
from echo.plans.options import Options
from echo.policies.problem import WarmStart
from echo.runtime.backward_checks import InputWatch, needs_training, watch_of, watch_of_all
from echo.runtime.bind_request import Shapes
from echo.verify.verifier import Verifier

if TYPE_CHECKING:
    from echo.runtime.error_policy import ErrorPolicy


class Rebinds(Protocol):
    """The protocol by which an executor is bound again (`echo.runtime.bind.Rebinder`)."""

    @property
    def on_error(self) -> ErrorPolicy:
        """The error policy of the bind."""

    def replan(self, binding: Binding) -> tuple[Graph, Graph] | None:
        """The graph with fused operators for these shapes, and the marked one to bind; None where planning fails."""

    def confirms(self, base: Graph, graph: Graph, binding: Binding) -> bool:
        """Whether the marks that a graph has on top of the base also hold for these shapes: fewer bytes, equal bits."""

    def bind(self, bound: Graph | Symbol, *args: Any, **more: Any) -> mx.executor.Executor:
        """MXNet's own ``Symbol.bind``."""

    def pointwise(self, bound: Graph | Symbol) -> ContextManager[None]:
        """While this is open, MXNet fuses pointwise operators in binds of this graph as it should.

        Those of a planned graph stay apart; in the user's own MXNet does what it does by itself.
        """

    def differentiate(self, graph: Graph, binding: Binding) -> TrainingGraph:
        """The training graph of a bind like this."""


@dataclass(frozen=True)
class AppliedPlan:
    """The graphs, shapes and plan that an executor was bound with.

    ``base`` is the original graph with fused operators, ``graph`` is the base with the marks of a plan; both may be the
    user's. ``shapes`` are those of the arguments that it was planned for; ``held`` remembers, by the key of a binding
    with other shapes, whether the plan holds for it too.
    """

    original: Graph
    base: Graph
    graph: Graph
    shapes: Shapes
    rebinder: Rebinds
    verifier: Verifier | None = field(default=None, compare=False)
    held: dict[Any, bool] = field(default_factory=dict, compare=False)

    @cached_property
    def marked(self) -> frozenset[str]:
        """The operators of the nodes that are recomputed."""
        return frozenset(node.op for node in self._recomputed)

    @cached_property
    def fuses(self) -> bool:
        """Whether operators are fused, into kernels of echo's or into an MXNet operator, as one large product."""
        return self.base != self.original

    @cached_property
    def is_unchanged(self) -> bool:
        """Whether the user's own graph is bound."""
        return self.graph == self.original

    @cached_property
    def has_gradient_rules(self) -> bool:
        """Whether some gradients follow another rule than MXNet's, by which they read less."""
        return has_gradient_rules(self.graph)

    @cached_property
    def watch(self) -> InputWatch | None:
        """The watch of the arguments that backward reads again."""
        return watch_of(self.graph, self.original, self._arguments)

    @cached_property
    def watches_of_all(self) -> tuple[InputWatch | None, InputWatch | None]:
        """Watches of all arguments, for inference and for training: of forward passes that backward may repeat."""
        may_repeat = self.mode_dependent or self.needs_training
        inference, training = (watch_of_all(self._arguments, mode) if may_repeat else None for mode in (False, True))
        return inference, training

    @cached_property
    def _arguments(self) -> list[str]:
        names: list[str] = symbol_of(self.original).list_arguments()
        return names

    @cached_property
    def needs_training(self) -> bool:
        """Whether backward reads what forward writes in training alone (`echo.runtime.backward_checks`)."""
        return needs_training(self.graph, self.original, self._recomputed)

    @cached_property
    def mode_dependent(self) -> frozenset[str]:
        """The operators that have to be recomputed in the mode of the forward pass."""
        sensitive = (node for node in self._recomputed if spec(node.op).safety.train_mode_sensitive(node.attrs))
        return frozenset(node.op for node in sensitive)

    @cached_property
    def _recomputed(self) -> list[Node]:
        return [self.graph.nodes[number] for number in marked(self.base, self.graph)]


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
        """Adds the chunks that a bind requests alongside the pool, and returns the pool of the new executor."""
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


@dataclass(frozen=True)
class BoundLeader:
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
        framework = MxnetFramework(self.base, self.binding, self.ctx)
        training = framework.differentiate()
        candidates = FindCandidates().run(Request(self.base, options, framework), training)
        recomputed = marked(self.base, self.graph)
        chosen = {number for number, node in training.operators() if node.forward and node.original in recomputed}
        heavy = not chosen.isdisjoint(candidates.heavy)
        offered = {**candidates.light, **candidates.heavy} if heavy else candidates.light
        return replace(WarmStart.of(training, offered, chosen), heavy=heavy)
