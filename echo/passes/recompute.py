"""What the native hook makes of a choice: the training graph with clones of the recomputed forward nodes.

This is the specification of ``echo/native/planner/graph.cc`` and of the clones that ``echo/native/hook/gradient.cc``
makes; both are tested against it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterable, Iterator, Sequence

from echo.graph import Entry
from echo.training_graph import TrainingGraph, TrainingNode

CLONE_SUFFIX = "_echo"


@dataclass
class _Builder:
    training: TrainingGraph
    recompute: frozenset[Entry]

    def __post_init__(self) -> None:
        self.nodes: list[TrainingNode] = list(self.training.nodes)
        self.clone_of: dict[int, int] = {}

    def redirected(self, entry: Entry) -> Entry:
        if Entry(entry.node, entry.index) not in self.recompute:
            return entry
        return Entry(self.clone_of[entry.node], entry.index)

    def add_clones(self) -> None:
        for number in sorted({entry.node for entry in self.recompute}):
            node = self.training.nodes[number]
            inputs = tuple(map(self.redirected, node.inputs))
            name = node.name + CLONE_SUFFIX
            clone = replace(node, name=name, inputs=inputs, forward=False, external=frozenset())
            if node.op == "Dropout":  # data times the stashed mask
                product = ((0, 0, False), (1, 0, False))
                inputs = (*inputs, Entry(number, 1))
                clone = replace(
                    clone, op="elemwise_mul", inputs=inputs, outputs=node.outputs[:1], inplace=product, random=False
                )
            self.clone_of[number] = len(self.nodes)
            self.nodes.append(clone)

    def redirect_backward(self) -> None:
        for number, node in self.training.operators():
            if node.forward:
                continue
            inputs = tuple(
                entry if position in node.ignored else self.redirected(entry)
                for position, entry in enumerate(node.inputs)
            )
            self.nodes[number] = node.reading(inputs, node.control_deps)


def with_clones(training: TrainingGraph, recompute: Iterable[Entry]) -> TrainingGraph:
    """The training graph in which backward nodes read the entries in ``recompute`` from clones.

    Nodes come in the new execution order: depth-first from the outputs over inputs, then control dependencies. Clones
    that no gradient reaches are not there. ``planned_bytes`` is 0: it is not known.
    """
    builder = _Builder(training, frozenset(Entry(e.node, e.index) for e in recompute))
    builder.add_clones()
    builder.redirect_backward()
    return in_execution_order(builder.nodes, training)


def _children(node: TrainingNode) -> Iterator[int]:
    return iter([*[entry.node for entry in node.inputs], *node.control_deps])


def in_execution_order(nodes: Sequence[TrainingNode], training: TrainingGraph) -> TrainingGraph:
    """These nodes, numbered as in ``training``, in MXNet's order: depth-first from the outputs. Others are left out."""
    order: list[int] = []
    visited: set[int] = set()
    for head in training.outputs:
        stack = [] if head.node in visited else [(head.node, _children(nodes[head.node]))]
        visited.add(head.node)
        while stack:
            number, children = stack[-1]
            for child in children:
                if child not in visited:
                    visited.add(child)
                    stack.append((child, _children(nodes[child])))
                    break
            else:
                order.append(number)
                stack.pop()
    place = {number: index for index, number in enumerate(order)}

    def moved(entry: Entry) -> Entry:
        return Entry(place[entry[0]], entry[1])

    return TrainingGraph(
        nodes=tuple(
            nodes[number].reading(
                tuple(map(moved, nodes[number].inputs)), tuple([place[dep] for dep in nodes[number].control_deps])
            )
            for number in order
        ),
        outputs=tuple(map(moved, training.outputs)),
        num_forward_outputs=training.num_forward_outputs,
        planned_bytes=0,
        runner=training.runner,
    )
