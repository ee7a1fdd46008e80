"""The training graph with clones of the recomputed forward nodes, as the native hook makes it from a choice.

This is the specification of ``echo/native/planner/graph.cc`` and of the clones that ``echo/native/hook/gradient.cc``
makes; both are tested against it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Iterable, Iterator, Sequence

from echo.ir.graph import Entry
from echo.ir.ops import spec
from echo.ir.schedule import Splits
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import NO_NUMBERS, TrainingNode

CLONE_SUFFIX = "_echo"


@dataclass
class _Builder:
    training: TrainingGraph
    recompute: frozenset[Entry]
    splits: Splits

    def __post_init__(self) -> None:
        self.nodes: list[TrainingNode] = list(self.training.nodes)
        self.again = {entry[:2] for entry in self.recompute}
        self.clones: dict[tuple[int, int], int] = {}  # (node, copy): number

    def copy_at(self, number: int, slot: int) -> int:
        return bisect_right(self.splits[number], slot) if self.splits.get(number) else 1

    def redirected(self, entry: Entry, slot: int) -> Entry:
        copy = self.copy_at(entry.node, slot)
        if entry[:2] not in self.again or copy == 0:
            return entry
        return Entry(self.clones[entry.node, copy], entry.index)

    def missing(self, entry: Entry, slot: int) -> bool:
        """Whether a reader at ``slot`` needs a clone that is not there yet."""
        if entry[:2] not in self.again:
            return False
        copy = self.copy_at(entry.node, slot)
        return copy > 0 and (entry.node, copy) not in self.clones

    def add_clones(self, entries: Iterable[Entry], slot: int) -> None:
        """The clones that a backward node reads at ``slot``, and those that they read themselves.

        They run in the order of the forward pass: depth-first, from input to input, more would be alive at once.
        """
        needed = {entry.node for entry in entries if self.missing(entry, slot)}
        below = list(needed)
        while below:
            for entry in self.training.nodes[below.pop()].inputs:
                if entry.node not in needed and self.missing(entry, slot):
                    needed.add(entry.node)
                    below.append(entry.node)
        before: tuple[int, ...] = ()
        for node in sorted(needed):
            before = (self.add_clone(node, slot, before),)

    def add_clone(self, number: int, slot: int, before: tuple[int, ...]) -> int:
        node = self.training.nodes[number]
        inputs = tuple(self.redirected(entry, slot) for entry in node.inputs)
        clone = node.having(
            name=node.name + CLONE_SUFFIX,
            inputs=inputs,
            control_deps=(*node.control_deps, *before),
            forward=False,
            external=NO_NUMBERS,
        )
        if node.is_masked:  # data times the stashed mask
            product = ((0, 0, False), (1, 0, False))
            inputs = (*inputs, Entry(number, 1))
            clone = clone.having(
                op=spec(node.op).clone_op, inputs=inputs, outputs=node.outputs[:1], inplace=product, random=False
            )
        self.clones[number, self.copy_at(number, slot)] = len(self.nodes)
        self.nodes.append(clone)
        return len(self.nodes) - 1

    def redirect_backward(self) -> None:
        for number, node in self.training.operators():
            if node.forward or all(entry[:2] not in self.again for entry in node.inputs):
                continue
            self.add_clones((e for position, e in enumerate(node.inputs) if position not in node.ignored), number)
            inputs = tuple(
                entry if position in node.ignored else self.redirected(entry, number)
                for position, entry in enumerate(node.inputs)
            )
            self.nodes[number] = node.having(inputs=inputs)


def with_clones(training: TrainingGraph, recompute: Iterable[Entry], splits: Splits | None = None) -> TrainingGraph:
    """The training graph in which backward nodes read the entries in ``recompute`` from clones.

    There is one clone of each node, or as many as its ``splits`` say (`echo.ir.schedule`). Nodes come in the new
    execution order: depth-first from the outputs over inputs, then control dependencies. Clones that no gradient
    reaches are not there. ``planned_bytes`` is 0: it is not known.
    """
    builder = _Builder(training, frozenset(Entry(e.node, e.index) for e in recompute), splits or {})
    builder.redirect_backward()
    return in_execution_order(builder.nodes, training)


def _children(node: TrainingNode) -> Iterator[int]:
    return iter([*[entry.node for entry in node.inputs], *node.control_deps])


def in_execution_order(nodes: Sequence[TrainingNode], training: TrainingGraph) -> TrainingGraph:
    """The nodes that the outputs reach, in MXNet's order: depth-first. ``nodes`` are numbered as in ``training``."""
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

    entries: dict[tuple[int, int], Entry] = {}  # one object for all readers of an entry

    def moved(entry: Entry) -> Entry:
        if entry[:2] not in entries:
            entries[entry[:2]] = Entry(place[entry[0]], entry[1])
        return entries[entry[:2]]

    def renumbered(node: TrainingNode) -> TrainingNode:
        deps = tuple([place[dep] for dep in node.control_deps])
        return node.having(inputs=tuple(map(moved, node.inputs)), control_deps=deps)

    # nodes before the first that moves read nodes before them
    unmoved = next((index for index, number in enumerate(order) if index != number), len(order))
    return TrainingGraph(
        nodes=tuple(nodes[number] if number < unmoved else renumbered(nodes[number]) for number in order),
        outputs=tuple(map(moved, training.outputs)),
        num_forward_outputs=training.num_forward_outputs,
        planned_bytes=0,
        runner=training.runner,
        pool=training.pool,
    )
