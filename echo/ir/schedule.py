"""A schedule: which forward nodes run again in a training step, and where; data in, data out.

The base order is the order of a training graph's nodes. A node is *split* at a position of it: backward nodes from that
position on no longer read what the forward pass computed, but a copy that is computed just before the first of them
runs. A node split twice is recomputed twice. A copy reads its inputs as they are at that position: the forward
pass's value, or a copy of theirs. Every set of splits is a valid schedule, and recomputes nothing that is not read.

This is the specification of ``echo/native/planner/schedule.cc``; `replay` checks the schedules of both.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Container, Iterable, Mapping, NamedTuple, Sequence

from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph

Splits = Mapping[int, Sequence[int]]  # node: positions, ascending


class Step(NamedTuple):
    """Node ``node`` runs at position ``slot`` of the base order; again, if that is not its own position."""

    node: int
    slot: int


class Replayed(NamedTuple):
    """The bytes that a schedule needs, and the seconds of its runs."""

    bytes: int
    seconds: float


@dataclass
class _Run:
    training: TrainingGraph
    splits: Splits
    again: Container[Entry] | None
    steps: list[Step] = field(default_factory=list)
    copies: set[tuple[int, int]] = field(default_factory=set)  # (node, copy)

    def copy_at(self, entry: Entry, slot: int) -> int:
        if self.again is not None and Entry(entry.node, entry.index) not in self.again:
            return 0
        return bisect_right(self.splits.get(entry.node, ()), slot)

    def missing(self, node: int, slot: int) -> list[int]:
        """The forward nodes that have to run again before ``node`` can read its inputs at ``slot``."""
        nodes: list[int] = []
        for position, entry in enumerate(self.training.nodes[node].inputs):
            copy = self.copy_at(entry, slot)
            is_there = copy == 0 or (entry.node, copy) in self.copies or entry.node in nodes
            if not is_there and position not in self.training.nodes[node].ignored:
                nodes.append(entry.node)
        return nodes

    def backward(self, slot: int) -> None:
        needed = self.missing(slot, slot)
        for node in needed:  # grows as it goes
            needed += [more for more in self.missing(node, slot) if more not in needed]
        for node in sorted(needed):
            self.copies.add((node, bisect_right(self.splits[node], slot)))
            self.steps.append(Step(node, slot))
        self.steps.append(Step(slot, slot))


def steps_of(training: TrainingGraph, splits: Splits, again: Container[Entry] | None = None) -> list[Step]:
    """The steps of a training step, in order; only entries in ``again``, by default all, are read from copies."""
    run = _Run(training, splits, again)
    for number, node in training.operators():
        if node.forward:
            run.steps.append(Step(number, number))
        else:
            run.backward(number)
    return run.steps


def replay(training: TrainingGraph, order: Sequence[int], seconds: Sequence[float]) -> Replayed:
    """Runs these nodes in this order, and trusts nothing that made the order: the certificate of a schedule.

    A node reads the latest value of each input. A value is alive from when it is made until it is read for the last
    time; a node's outputs are counted before its inputs are freed. Memory that is not the planner's, and work in
    place, is left out.

    Raises:
        ValueError: a node runs before its inputs are there, or does not run at all.
    """
    nodes = training.nodes
    last_run: dict[int, int] = {}
    last_use: dict[tuple[int, int], int] = {}  # (step at which it was made, output)
    for step, number in enumerate(order):
        for position, entry in enumerate(nodes[number].inputs):
            if nodes[entry.node].is_variable or position in nodes[number].ignored:
                continue
            if entry.node not in last_run:
                raise ValueError(f"step {step}: {nodes[number].name!r} reads {nodes[entry.node].name!r} before it ran")
            last_use[last_run[entry.node], entry.index] = step
        last_run[number] = step
    missing = [node.name for number, node in training.operators() if number not in last_run]
    if missing:
        raise ValueError(f"{missing[0]!r} does not run")
    for entry in training.outputs:
        if entry.node in last_run:
            last_use[last_run[entry.node], entry.index] = len(order)
    return Replayed(_peak(training, order, last_use), sum(seconds[number] for number in order))


def _peak(training: TrainingGraph, order: Sequence[int], last_use: Mapping[tuple[int, int], int]) -> int:
    change = [0] * (len(order) + 2)
    for step, number in enumerate(order):
        for index, tensor in enumerate(training.nodes[number].outputs):
            if index not in training.nodes[number].unowned:
                change[step] += tensor.bytes
                change[last_use.get((step, index), step) + 1] -= tensor.bytes
    live = peak = 0
    for amount in change:
        live += amount
        peak = max(peak, live)
    return peak


def once(training: TrainingGraph, nodes: Iterable[int]) -> Splits:
    """The splits that recompute each of these nodes once, for all backward nodes."""
    first = first_backward(training)
    return {int(node): (first,) for node in sorted(nodes)}


def first_backward(training: TrainingGraph) -> int:
    """The position of the first backward node."""
    return next((number for number, node in training.operators() if not node.forward), len(training.nodes))
