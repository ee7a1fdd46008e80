"""The footprint of a training graph: bytes of every entry, lifetimes, the timeline of live bytes and its peak.

An entry lives from the node that computes it to its last reader; entries that share memory in place count once; what
the graph returns lives to the end. What the planner does not own (arguments, gradients of arguments, auxiliary states)
is counted apart: it is there all the time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping

import numpy as np
import numpy.typing as npt

from echo.estimators.reference import Storage
from echo.graph import Entry
from echo.training_graph import TrainingGraph, TrainingNode

FEATURE_MAPS, RECOMPUTED = "feature maps", "recomputed maps"
OUTPUT_GRADIENTS, TEMPORARIES = "map gradients", "temporaries"
WEIGHTS, INPUTS, GRADIENTS, AUXILIARY = "weights", "inputs", "weight gradients", "auxiliary states"


@dataclass(frozen=True)
class Footprint:
    """``live[i]`` is the bytes alive while node i of the training graph runs; ``peak_node`` is where it is largest.

    ``at_peak`` splits the peak by kind, ``layers`` the feature maps stashed for the backward pass by layer, and
    ``static`` the bytes that are there all the time by kind.
    """

    live: npt.NDArray[np.int64]
    peak_node: int
    at_peak: Mapping[str, int]
    layers: Mapping[str, int]
    static: Mapping[str, int]

    @property
    def peak(self) -> int:
        """Largest number of bytes alive at once, without what is static."""
        return int(self.live[self.peak_node]) if len(self.live) else 0

    @property
    def static_bytes(self) -> int:
        return sum(self.static.values())


@dataclass(frozen=True)
class _Group:
    """Entries that share memory in place: alive from node ``first`` to node ``last``."""

    entries: tuple[Entry, ...]
    first: int
    last: int
    bytes: int


def footprint(training: TrainingGraph, storage: Storage, static: Mapping[str, int]) -> Footprint:
    """Lifetimes under the in-place choices of ``storage`` (`echo.estimators.reference.plan_storage`)."""
    groups = _groups(training, storage)
    changes = np.zeros(len(training.nodes) + 1, np.int64)
    for group in groups:
        changes[group.first] += group.bytes
        changes[group.last + 1] -= group.bytes
    live = np.cumsum(changes)[:-1]
    peak_node = int(np.argmax(live)) if len(live) else 0
    at_peak: dict[str, int] = {}
    for group in groups:
        if group.first <= peak_node <= group.last:
            kind = _kind(training, group)
            at_peak[kind] = at_peak.get(kind, 0) + group.bytes
    return Footprint(live, peak_node, at_peak, _stashed_by_layer(training, groups), static)


def held_at_peak(training: TrainingGraph, storage: Storage, peak_node: int, most: int = 5) -> list[tuple[str, int]]:
    """The largest entries alive while ``peak_node`` runs: (name, bytes)."""
    groups = _groups(training, storage)
    alive = [group for group in groups if group.first <= peak_node <= group.last]
    alive.sort(key=lambda group: -group.bytes)
    return [(training.nodes[group.entries[0].node].name, group.bytes) for group in alive[:most]]


def _groups(training: TrainingGraph, storage: Storage) -> list[_Group]:
    last = _last_readers(training)
    members: dict[Entry, list[Entry]] = {}
    root: dict[Entry, Entry] = {}
    for number, node in training.operators():
        for index in range(len(node.outputs)):
            entry = Entry(number, index)
            position = storage.inplace[training.entry_id(entry)]
            if storage.chunk[training.entry_id(entry)] < 0:
                continue
            source = Entry(*node.inputs[position][:2]) if position >= 0 else entry
            root[entry] = root.get(source, entry)
            members.setdefault(root[entry], []).append(entry)
    return [
        _Group(
            tuple(entries),
            entries[0].node,
            max(last[entry] for entry in entries),
            max(training.type_of(entry).bytes for entry in entries),
        )
        for entries in members.values()
    ]


def _last_readers(training: TrainingGraph) -> dict[Entry, int]:
    last = {
        Entry(number, index): number for number, node in training.operators() for index in range(len(node.outputs))
    }
    for number, node in training.operators():
        for position, entry in enumerate(node.inputs):
            if position not in node.ignored:
                last[Entry(entry.node, entry.index)] = number
    for entry in training.outputs:
        last[Entry(entry.node, entry.index)] = len(training.nodes) - 1
    return last


def _is_stashed(training: TrainingGraph, group: _Group) -> bool:
    return training.nodes[group.first].forward and not training.nodes[group.last].forward


def _kind(training: TrainingGraph, group: _Group) -> str:
    node = training.nodes[group.first]
    if node.forward:
        return FEATURE_MAPS if _is_stashed(training, group) else TEMPORARIES
    return RECOMPUTED if node.user is not None else OUTPUT_GRADIENTS


def layer_of(node: TrainingNode) -> str:
    """A layer's name, for reports alone: the first words of the node's name, with "*" for counters."""
    words = [re.sub(r"^t?\d+$|(?<=\D)\d+$", "*", word) for word in node.name.split("_") if word]
    return "_".join(words[:2]) or node.op


def _stashed_by_layer(training: TrainingGraph, groups: list[_Group]) -> dict[str, int]:
    layers: dict[str, int] = {}
    for group in groups:
        if _is_stashed(training, group):
            layer = layer_of(training.nodes[group.first])
            layers[layer] = layers.get(layer, 0) + group.bytes
    return dict(sorted(layers.items(), key=lambda item: -item[1]))
