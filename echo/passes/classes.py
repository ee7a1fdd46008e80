"""Structural classes of equivalent nodes: the same role in every time step or layer, found without names.

Unrolled graphs repeat themselves, and one decision a class is far better than one a node: a choice for a single time
step saves nothing until all steps follow it. Nodes start with a colour made of operator, attributes and shapes, and are
told apart by the colours around them, one ring more each round (Weisfeiler-Lehman colour refinement).
"""

from __future__ import annotations

from typing import Iterable

from echo.graph import Entry
from echo.training_graph import TrainingGraph, TrainingNode

# Attributes that say what an operator does, and not how large it is.
_KINDS = frozenset(
    {"act_type", "pool_type", "mode", "p", "scalar", "axis", "kernel", "stride", "transpose_a", "transpose_b"}
)
_MOST_GATES = 8  # an LSTM cell has four, with peepholes and projections not more than this


def classes(training: TrainingGraph, nodes: Iterable[int], rounds: int) -> list[tuple[int, ...]]:
    """Groups ``nodes`` by their structure up to ``rounds`` steps away; largest total bytes first."""
    colours = _refined(training, _initial_colours(training), rounds)
    groups: dict[int, list[int]] = {}
    for number in nodes:
        groups.setdefault(colours[number], []).append(number)

    def weight(group: list[int]) -> int:
        return sum(training.nodes[number].outputs[0].bytes for number in group)

    return [tuple(group) for group in sorted(groups.values(), key=weight, reverse=True)]


def roles(training: TrainingGraph, rounds: int) -> list[int]:
    """A colour for each node that equal roles share across graphs of one model: other lengths, other batch sizes.

    Sizes are left out. Variables count by name, which is how such graphs share their weights.
    """

    def colour(node: TrainingNode) -> int:
        if node.is_variable:
            return hash(("variable", node.name))
        attrs = tuple(sorted((key, value) for key, value in node.attrs.items() if key in _KINDS))
        return hash((node.op, attrs))

    return _refined(training, [colour(node) for node in training.nodes], rounds)


def _refined(training: TrainingGraph, colours: list[int], rounds: int) -> list[int]:
    readers: list[list[int]] = [[] for _ in training.nodes]
    forward = [number for number, node in training.operators() if node.forward]
    for number in forward:
        for entry in training.nodes[number].inputs:
            readers[entry.node].append(number)
    for _ in range(rounds):
        before, colours = colours, list(colours)
        for number in forward:
            inputs = tuple((before[entry.node], _role(training, entry)) for entry in training.nodes[number].inputs)
            # a set: how often a value is read must not tell the first time step from the second
            colours[number] = hash((before[number], inputs, frozenset(before[reader] for reader in readers[number])))
    return colours


def _role(training: TrainingGraph, entry: Entry) -> int:
    """Which output is read, where that makes a difference: an array split in many parts is split into time steps."""
    return entry.index if len(training.nodes[entry.node].outputs) <= _MOST_GATES else -1


def _initial_colours(training: TrainingGraph) -> list[int]:
    uses = [0] * len(training.nodes)
    for _, node in training.operators():
        if node.forward:
            for entry in node.inputs:
                uses[entry.node] += 1

    def colour(number: int, node: TrainingNode) -> int:
        if node.is_variable:
            # a shared weight tells roles apart, a variable that is used once is one of many alike
            return hash(("shared", number)) if uses[number] > 1 else hash(("own", node.outputs))
        attrs = tuple(sorted((key, value) for key, value in node.attrs.items() if not key.startswith("__")))
        return hash((node.op, attrs, node.outputs))

    return [colour(number, node) for number, node in enumerate(training.nodes)]
