"""The graphs and the plan that an executor was bound with, and the protocol by which it is bound again."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ContextManager, Protocol

import mxnet as mx
from mxnet.symbol import Symbol

from echo.frontend.symbols import Binding, symbol_of
from echo.ir.graph import Graph
from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph
from echo.plans.decisions import implements, marked
from echo.runtime.backward_checks import InputWatch, watch_of, watch_of_all
from echo.runtime.bind_request import Shapes

if TYPE_CHECKING:
    from echo.runtime.error_policy import ErrorPolicy
    from echo.runtime.verifier import Verifier


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
class Applied:
    """The graphs, shapes and plan that an executor was bound with.

    ``base`` is the user's graph with fused operators, ``graph`` is the base with the marks of a plan; both may be the
    user's. ``shapes`` are those of the arguments that it was planned for; ``held`` remembers, by the key of a binding
    with other shapes, whether the plan holds for it too.
    """

    user: Graph
    base: Graph
    graph: Graph
    shapes: Shapes
    rebinder: Rebinds
    verifier: Verifier | None = field(default=None, compare=False)
    held: dict[Any, bool] = field(default_factory=dict, compare=False)

    @cached_property
    def marked(self) -> frozenset[str]:
        """The operators of the nodes that run again."""
        return frozenset(self.graph.nodes[number].op for number in marked(self.base, self.graph))

    @cached_property
    def fuses(self) -> bool:
        """Whether operators are fused, into kernels of echo's or into an operator of MXNet's, as one large product."""
        return self.base != self.user

    @cached_property
    def implements(self) -> bool:
        """Whether some gradients follow another rule than MXNet's, by which they read less."""
        return implements(self.graph)

    @cached_property
    def watch(self) -> InputWatch | None:
        """The watch of the arguments that backward reads again."""
        return watch_of(self.graph, self.user, self._arguments)

    @cached_property
    def watches_of_all(self) -> tuple[InputWatch | None, InputWatch | None]:
        """Watches of all arguments, for inference and for training: of forward passes that backward may repeat."""
        may_repeat = self.mode_dependent or self.has_masks
        inference, training = (watch_of_all(self._arguments, mode) if may_repeat else None for mode in (False, True))
        return inference, training

    @cached_property
    def _arguments(self) -> list[str]:
        names: list[str] = symbol_of(self.user).list_arguments()
        return names

    @cached_property
    def has_masks(self) -> bool:
        """Whether some node runs again as a product with its mask, which there is in training alone."""
        return any(spec(op).clone_op for op in self.marked)

    @cached_property
    def mode_dependent(self) -> frozenset[str]:
        """The operators that run again and have to do so in the mode of the forward pass."""
        recomputed = (self.graph.nodes[number] for number in marked(self.base, self.graph))
        return frozenset(node.op for node in recomputed if spec(node.op).of_mode(node.attrs))
