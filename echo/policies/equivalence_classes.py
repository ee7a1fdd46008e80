"""Structural classes of equivalent nodes: the same role in every time step or layer, found without names.

Unrolled graphs repeat themselves, and one decision a class is far better than one a node: a choice for a single time
step saves nothing until all steps follow it. Nodes start with a colour made of operator, attributes and shapes; each
round refines it by the colours of the neighbours (Weisfeiler-Lehman colour refinement).

A colour is a 64-bit number, mixed from those around a node; that any two of 300,000 nodes share one by chance has a
probability below one in a hundred million. A round takes time linear in nodes and reads, but for sorting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from echo.ir.ops import KIND_ATTRIBUTES
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode

Colours = npt.NDArray[np.uint64]  # one for each node of a training graph; those of backward nodes are not used

_MOST_GATES = 8  # an LSTM cell has four, with peepholes and projections at most eight


def classes(training: TrainingGraph, nodes: Iterable[int], rounds: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """For each number of rounds: ``nodes`` grouped by the structure within so many edges, largest bytes first."""
    numbers = np.array(list(nodes), np.int64)
    if not len(numbers):
        return [[] for _ in rounds]
    sizes = np.array([training.nodes[number].outputs[0].bytes for number in numbers.tolist()], np.float64)
    colours = _refined(training, _initial_colours(training), max(rounds))
    return [_groups(numbers, sizes, colours[count][numbers]) for count in rounds]


def _groups(numbers: npt.NDArray[np.int64], sizes: npt.NDArray[np.float64], colours: Colours) -> list[tuple[int, ...]]:
    _, first, group = np.unique(colours, return_index=True, return_inverse=True)
    weights = np.bincount(group, weights=sizes)
    place = np.empty(len(first), np.int64)  # of each group: largest first, then in the order of their first nodes
    place[np.lexsort((first, -weights))] = np.arange(len(first))
    order = np.argsort(place[group], kind="stable")
    ends = np.cumsum(np.bincount(place[group])).tolist()
    members = numbers[order].tolist()
    return [tuple(members[begin:end]) for begin, end in zip([0, *ends], ends)]


def roles(training: TrainingGraph, rounds: Sequence[int]) -> list[list[int]]:
    """For each number of rounds, a colour for each node that equal roles share across graphs of one model.

    Such graphs have other lengths and other batch sizes: sizes are left out, and variables count by name, by which the
    graphs share their weights.
    """

    def kind(node: TrainingNode) -> Hashable:
        if node.is_variable:
            return ("variable", node.name)
        return (node.op, tuple(sorted((key, value) for key, value in node.attrs.items() if key in KIND_ATTRIBUTES)))

    def alike(node: TrainingNode) -> Hashable:
        return (node.name if node.is_variable else node.op, tuple(node.attrs.items()))

    most = max(rounds)
    key = roles.__qualname__, most
    if key not in training.memo:
        start = _hashed([0 if not node.forward else node for node in training.nodes], alike, kind)
        training.memo[key] = [colours.tolist() for colours in _refined(training, start, most)]
    return [training.memo[key][count] for count in rounds]


def _initial_colours(training: TrainingGraph) -> Colours:
    uses = _ForwardReads.of(training).uses(len(training.nodes)).tolist()
    nodes: list[TrainingNode | int] = []
    for number, node in enumerate(training.nodes):
        # a shared weight tells roles apart, but variables that are used once are alike
        nodes.append(number if node.is_variable and uses[number] > 1 else node if node.forward else 0)

    def kind(node: TrainingNode) -> Hashable:
        if node.is_variable:
            return ("own", node.outputs)
        attrs = sorted(pair for pair in node.attrs.items() if not pair[0].startswith("__"))
        return (node.op, tuple(attrs), node.outputs)

    def alike(node: TrainingNode) -> Hashable:
        return (node.op, tuple(node.attrs.items()), tuple([(output.shape, output.flag) for output in node.outputs]))

    return _hashed(nodes, alike, kind)


def _hashed(
    nodes: Sequence[TrainingNode | int],
    alike: Callable[[TrainingNode], Hashable],
    kind: Callable[[TrainingNode], Hashable],
) -> Colours:
    """A colour for the ``kind`` of each node, computed once for ``alike`` nodes; each number in ``nodes`` is unique."""
    colour_of: dict[Hashable, int] = {}
    colours = []
    for node in nodes:
        if isinstance(node, int):
            colours.append(hash(("shared", node)))
            continue
        key = alike(node)
        colour = colour_of.get(key)
        if colour is None:
            colour = colour_of[key] = hash(kind(node))
        colours.append(colour)
    return np.array(colours, np.int64).astype(np.uint64)


@dataclass(frozen=True)
class _ForwardReads:
    """Every read of a forward operator: the reader, the node that it reads, and the role of that input."""

    reader: npt.NDArray[np.int64]
    source: npt.NDArray[np.int64]
    role: Colours

    @staticmethod
    def of(training: TrainingGraph) -> _ForwardReads:
        reads = training.reads
        forward = np.array([node.forward and not node.is_variable for node in training.nodes], np.bool_)
        is_forward = forward[reads.reader]
        source, index = reads.source[is_forward], reads.index[is_forward]
        # which output is read, where that makes a difference: an array split in many parts is split into time steps
        many = np.diff(np.array(training.first_entry))[source] > _MOST_GATES
        role = reads.position[is_forward] * 64 + np.where(many, 63, index)
        return _ForwardReads(reads.reader[is_forward], source, _mixed(role.astype(np.uint64)))

    def uses(self, nodes: int) -> npt.NDArray[np.int64]:
        """Returns the number of reads of each node."""
        return np.bincount(self.source, minlength=nodes)


def _refined(training: TrainingGraph, colours: Colours, rounds: int) -> list[Colours]:
    """The colours after 0, 1, ... rounds."""
    reads = _ForwardReads.of(training)
    is_reader = np.zeros(len(training.nodes), np.bool_)
    is_reader[[number for number, node in training.operators() if node.forward]] = True
    colours_after = [colours]
    for _ in range(rounds):
        before = colours_after[-1]
        inputs = _summed(_mixed(before[reads.source] ^ reads.role), reads.reader, len(before))
        # a set: how often a value is read must not tell the first time step from the second
        source, reader = _distinct_pairs(reads.source, before[reads.reader])
        outputs = _summed(_mixed(reader), source, len(before))
        after = _mixed(before + _mixed(inputs + np.uint64(1)) + _mixed(_mixed(outputs)))
        colours_after.append(np.where(is_reader, after, before))
    return colours_after


def _mixed(values: Colours) -> Colours:
    """A hash of each value (the finalizer of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _summed(values: Colours, places: npt.NDArray[np.int64], count: int) -> Colours:
    """The sum of the values at each place, modulo 2**64; the places come in order."""
    total = np.zeros(count, np.uint64)
    if len(places):
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        total[places[starts]] = np.add.reduceat(values, starts)
    return total


def _distinct_pairs(places: npt.NDArray[np.int64], values: Colours) -> tuple[npt.NDArray[Any], Colours]:
    order = np.lexsort((values, places))
    places, values = places[order], values[order]
    fresh = np.ones(len(places), np.bool_)
    fresh[1:] = (places[1:] != places[:-1]) | (values[1:] != values[:-1])
    return places[fresh], values[fresh]
