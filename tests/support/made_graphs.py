"""Training graphs made by hand, and some that count how often they are looked at."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence, Tuple

from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode


class Builder:
    """Makes a training graph node by node; operators take and give entries."""

    def __init__(self) -> None:
        self.nodes: list[TrainingNode] = []

    def variable(self, name: str, *shape: int, forward: bool = True) -> Entry:
        return self.node("null", name, shape, (), forward=forward)

    def forward(self, op: str, name: str, shape: tuple[int, ...], *inputs: Entry, **more: Any) -> Entry:
        return self.node(op, name, shape, inputs, original=len(self.nodes), **more)

    def backward(self, op: str, name: str, shape: tuple[int, ...], *inputs: Entry, **more: Any) -> Entry:
        return self.node(op, name, shape, inputs, forward=False, **more)

    def node(self, op: str, name: str, shape: tuple[int, ...], inputs: Sequence[Entry], **more: Any) -> Entry:
        self.nodes.append(TrainingNode(op, name, (TensorType(shape),), tuple(inputs), **more))
        return Entry(len(self.nodes) - 1)

    def graph(self, outputs: Sequence[Entry], num_forward_outputs: int = 1) -> TrainingGraph:
        return TrainingGraph(tuple(self.nodes), tuple(outputs), num_forward_outputs, 0)


def diamonds(count: int) -> TrainingGraph:
    """Forks and joins on top of each other: twice as many paths with each one, six more nodes."""
    b = Builder()
    joins = [b.variable("x", 64)]
    sides = []
    for step in range(count):
        left = b.forward("tanh", f"left{step}", (64,), joins[-1])
        right = b.forward("exp", f"right{step}", (64,), joins[-1])
        sides.append((left, right))
        joins.append(b.forward("elemwise_add", f"join{step}", (64,), left, right))
    gradient = b.variable("head", 64, forward=False)
    for step in reversed(range(count)):
        left, right = sides[step]
        of_left = b.backward("_backward_tanh", f"gleft{step}", (64,), gradient, left, control_deps=(left.node,))
        of_right = b.backward("elemwise_mul", f"gright{step}", (64,), gradient, right, control_deps=(right.node,))
        gradient = b.backward("_grad_add", f"sum{step}", (64,), of_left, of_right)
    return b.graph([joins[-1], gradient])


class CountedNodes(Tuple[TrainingNode, ...]):
    """Nodes that count how often one of them is looked at."""

    visits = 0

    def __getitem__(self, index: Any) -> Any:
        self.visits += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[TrainingNode]:
        self.visits += len(self)
        return super().__iter__()


class CountedGraph(TrainingGraph):
    """A training graph that counts visits of its nodes."""

    @staticmethod
    def of(training: TrainingGraph) -> CountedGraph:
        return CountedGraph(CountedNodes(training.nodes), training.outputs, training.num_forward_outputs, 0)

    def operators(self) -> tuple[tuple[int, TrainingNode], ...]:
        found = super().operators()
        self.nodes.visits += len(found)  # type: ignore[attr-defined]
        return found

    def visits(self, action: Callable[[], object]) -> int:
        """How many visits an action makes."""
        before = self.nodes.visits  # type: ignore[attr-defined]
        action()
        return int(self.nodes.visits - before)  # type: ignore[attr-defined]
