"""A schedule: where each node is recomputed, and the training graph with those clones; data in, data out.

`replay` is the specification of ``echo/native/planner/schedule.cc``, and checks the schedules of both. `with_clones` is
that of ``echo/native/planner/graph.cc`` and of the clones that ``echo/native/hook/gradient.cc`` makes.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Container, Iterable, Iterator, Mapping, NamedTuple, Sequence

from echo.ir.graph import Entry, walk
from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import NO_NUMBERS, TrainingNode

# The base order is the order of a training graph's nodes. A node is *split* at a position of it: backward nodes from
# that position on no longer read what the forward pass computed, but a copy that is computed just before the first of
# them runs. A node split twice is recomputed twice. A copy reads its inputs as they are at that position: the forward
# pass's value, or a copy of theirs. Every set of splits is a valid schedule, and recomputes nothing that is not read.

RecomputeSchedule = Mapping[int, Sequence[int]]  # node: positions, ascending


class Step(NamedTuple):
    """Node ``node`` runs at ``position`` of the base order; again, if that is not its own position."""

    node: int
    position: int


class Replayed(NamedTuple):
    """The bytes that a schedule needs, and the seconds of its runs."""

    bytes: int
    seconds: float


@dataclass
class _Run:
    training: TrainingGraph
    schedule: RecomputeSchedule
    again: Container[Entry] | None
    steps: list[Step] = field(default_factory=list)
    copies: set[tuple[int, int]] = field(default_factory=set)  # (node, copy)

    def copy_at(self, entry: Entry, position: int) -> int:
        if self.again is not None and Entry(entry.node, entry.index) not in self.again:
            return 0
        return bisect_right(self.schedule.get(entry.node, ()), position)

    def missing(self, node: int, position: int) -> list[int]:
        """The forward nodes that have to be recomputed before ``node`` can read its inputs at ``position``."""
        nodes: list[int] = []
        for input_position, entry in enumerate(self.training.nodes[node].inputs):
            copy = self.copy_at(entry, position)
            is_there = copy == 0 or (entry.node, copy) in self.copies or entry.node in nodes
            if not is_there and input_position not in self.training.nodes[node].shape_only:
                nodes.append(entry.node)
        return nodes

    def backward(self, position: int) -> None:
        needed = self.missing(position, position)
        for node in needed:  # grows as it goes
            needed += [more for more in self.missing(node, position) if more not in needed]
        for node in sorted(needed):
            self.copies.add((node, bisect_right(self.schedule[node], position)))
            self.steps.append(Step(node, position))
        self.steps.append(Step(position, position))


def steps_of(training: TrainingGraph, schedule: RecomputeSchedule, again: Container[Entry] | None = None) -> list[Step]:
    """The steps of a training step, in order; only entries in ``again``, by default all, are read from copies."""
    run = _Run(training, schedule, again)
    for number, node in training.operators():
        if node.forward:
            run.steps.append(Step(number, number))
        else:
            run.backward(number)
    return run.steps


def replay(training: TrainingGraph, order: Sequence[int], seconds: Sequence[float]) -> Replayed:
    """Runs these nodes in this order, and trusts nothing that made the order: the certificate of a schedule.

    A node reads the latest value of each input. A value is alive from when it is made until it is read for the last
    time; a node's outputs are counted before its inputs are freed. What lives to the end is the value that was made
    first. Memory that is not the planner's, and work in place, is left out, and so are values that stay in a kernel
    (`values_in_kernels`).

    Raises:
        ValueError: a node runs before its inputs are there, or does not run at all.
    """
    return Replayed(_peak(training, order, last_uses(training, order)), sum(seconds[number] for number in order))


def last_uses(training: TrainingGraph, order: Sequence[int]) -> dict[tuple[int, int], int]:
    """The last reader of each value of a replay, by the step that makes the value, and its output.

    Values without a reader are not there. Of what lives to the end, the last reader is the number of steps.

    Raises:
        ValueError: as `replay`.
    """
    nodes = training.nodes
    first_run: dict[int, int] = {}
    last_run: dict[int, int] = {}
    last_use: dict[tuple[int, int], int] = {}
    for step, number in enumerate(order):
        for input_position, entry in enumerate(nodes[number].inputs):
            if nodes[entry.node].is_variable or input_position in nodes[number].shape_only:
                continue
            if entry.node not in last_run:
                raise ValueError(f"step {step}: {nodes[number].name!r} reads {nodes[entry.node].name!r} before it ran")
            last_use[last_run[entry.node], entry.index] = step
        last_run[number] = step
        first_run.setdefault(number, step)
    missing = [node.name for number, node in training.operators() if number not in last_run]
    if missing:
        raise ValueError(f"{missing[0]!r} does not run")
    for entry in training.outputs:
        if entry.node in first_run:
            last_use[first_run[entry.node], entry.index] = len(order)
    return last_use


def values_in_kernels(training: TrainingGraph, order: Sequence[int]) -> set[tuple[int, int]]:
    """The values of a replay that take no memory, by the step that makes the value, and its output.

    All their readers run in one kernel that computes them (`TrainingNode.in_kernel`), and in the same pass.
    """
    nodes, last_run = training.nodes, dict[int, int]()
    inside, outside, kernels = set[tuple[int, int]](), set[tuple[int, int]](), dict[tuple[int, int], int]()
    if not any(node.in_kernel for node in nodes):
        return inside
    first_run: dict[int, int] = {}
    in_backward: list[bool] = []
    for step, number in enumerate(order):
        node = nodes[number]
        in_backward.append(number in last_run or not node.forward)
        for position, entry in enumerate(node.inputs):
            made = last_run.get(entry.node)
            if made is not None and position not in node.shape_only:
                value = made, entry.index
                is_inside = position in node.in_kernel and in_backward[made] == in_backward[step]
                if is_inside and (kernel := node.in_kernel[position]):
                    is_inside = kernels.setdefault(value, kernel) == kernel
                (inside if is_inside else outside).add(value)
        last_run[number] = step
        first_run.setdefault(number, step)
    ends = {(first_run[entry.node], entry.index) for entry in training.outputs if entry.node in first_run}
    return inside - outside - ends


def _peak(training: TrainingGraph, order: Sequence[int], last_use: Mapping[tuple[int, int], int]) -> int:
    change, nowhere = [0] * (len(order) + 2), values_in_kernels(training, order)
    for step, number in enumerate(order):
        for index, tensor in enumerate(training.nodes[number].outputs):
            if index not in training.nodes[number].unowned and (step, index) not in nowhere:
                change[step] += tensor.bytes
                change[last_use.get((step, index), step) + 1] -= tensor.bytes
    live = peak = 0
    for amount in change:
        live += amount
        peak = max(peak, live)
    return peak


def once(training: TrainingGraph, nodes: Iterable[int]) -> RecomputeSchedule:
    """The schedule that recomputes each of these nodes once, for all backward nodes."""
    first = first_backward(training)
    return {int(node): (first,) for node in sorted(nodes)}


def needed(training: TrainingGraph, schedule: RecomputeSchedule) -> RecomputeSchedule:
    """A schedule without the nodes that nothing reads again."""
    runs = {step.node for step in steps_of(training, schedule) if step.node != step.position}
    return {number: positions for number, positions in schedule.items() if number in runs}


def first_backward(training: TrainingGraph) -> int:
    return next(iter(training.backward), len(training.nodes))


# The training graph with clones of the recomputed forward nodes, as the native hook makes it from a choice.

CLONE_SUFFIX = "_echo"


@dataclass
class _Builder:
    training: TrainingGraph
    recompute: frozenset[Entry]
    schedule: RecomputeSchedule

    def __post_init__(self) -> None:
        self.nodes: list[TrainingNode] = list(self.training.nodes)
        self.again = {entry[:2] for entry in self.recompute}
        self.clones: dict[tuple[int, int], int] = {}  # (node, copy): number

    def copy_at(self, number: int, position: int) -> int:
        return bisect_right(self.schedule[number], position) if self.schedule.get(number) else 1

    def redirected(self, entry: Entry, position: int) -> Entry:
        copy = self.copy_at(entry.node, position)
        if entry[:2] not in self.again or copy == 0:
            return entry
        return Entry(self.clones[entry.node, copy], entry.index)

    def missing(self, entry: Entry, position: int) -> bool:
        """Whether a reader at ``position`` needs a clone that is not there yet."""
        if entry[:2] not in self.again:
            return False
        copy = self.copy_at(entry.node, position)
        return copy > 0 and (entry.node, copy) not in self.clones

    def add_clones(self, entries: Iterable[Entry], position: int) -> None:
        """The clones that a backward node reads at ``position``, and those that they read themselves.

        They run in the order of the forward pass: depth-first, from input to input, more would be alive at once.
        """

        def missing(entries: Iterable[Entry]) -> list[int]:
            return [entry.node for entry in entries if self.missing(entry, position)]

        before: tuple[int, ...] = ()
        for node in sorted(walk(missing(entries), lambda number: missing(self.training.nodes[number].inputs))):
            before = (self.add_clone(node, position, before),)

    def add_clone(self, number: int, position: int, before: tuple[int, ...]) -> int:
        node = self.training.nodes[number]
        inputs = tuple(self.redirected(entry, position) for entry in node.inputs)
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
                op=spec(node.op).safety.clone_op, inputs=inputs, outputs=node.outputs[:1], inplace=product, random=False
            )
        self.clones[number, self.copy_at(number, position)] = len(self.nodes)
        self.nodes.append(clone)
        return len(self.nodes) - 1

    def redirect_backward(self) -> None:
        for number, node in self.training.operators():
            if node.forward or all(entry[:2] not in self.again for entry in node.inputs):
                continue
            read = (entry for at, entry in enumerate(node.inputs) if at not in node.shape_only)
            self.add_clones(read, number)
            inputs = tuple(
                entry if input_position in node.shape_only else self.redirected(entry, number)
                for input_position, entry in enumerate(node.inputs)
            )
            self.nodes[number] = node.having(inputs=inputs)


def with_clones(
    training: TrainingGraph, recompute: Iterable[Entry], schedule: RecomputeSchedule | None = None
) -> TrainingGraph:
    """The training graph in which backward nodes read the entries in ``recompute`` from clones.

    There is one clone of each node, or as many as the ``schedule`` says. Nodes come in the new
    execution order: depth-first from the outputs over inputs, then control dependencies. Clones that no gradient
    reaches are not there. ``planned_bytes`` is 0: it is not known.
    """
    builder = _Builder(training, frozenset(Entry(e.node, e.index) for e in recompute), schedule or {})
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
