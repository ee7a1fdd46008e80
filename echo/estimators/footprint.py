"""The footprint of a training graph: bytes of every entry, lifetimes, the timeline of live bytes and its peak.

An entry lives from the node that computes it to its last reader; entries that share memory in place count once; what
the graph returns lives to the end. What the planner does not own (arguments, gradients of arguments, auxiliary states)
is counted apart: it is there all the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from echo.estimators.layers import Layers
from echo.estimators.mxnet_storage import Storage
from echo.ir.training_graph import TrainingGraph

FEATURE_MAPS, RECOMPUTED = "feature maps", "recomputed maps"
OUTPUT_GRADIENTS, TEMPORARIES = "map gradients", "temporaries"
WEIGHTS, INPUTS, GRADIENTS, AUXILIARY = "weights", "inputs", "weight gradients", "auxiliary states"
OPTIMIZER = "optimizer states"


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
        """Largest number of bytes alive at once, without static bytes."""
        return int(self.live[self.peak_node]) if len(self.live) else 0

    @property
    def static_bytes(self) -> int:
        return sum(self.static.values())


@dataclass(frozen=True)
class _Groups:
    """Groups of entries sharing memory in place, as arrays: alive from ``first`` to ``last``; sorted by ``first``."""

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]

    def rows(self, mask: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int, int]]:
        """(first, last, bytes) of the groups in ``mask``."""
        return zip(*(column[mask].tolist() for column in (self.first, self.last, self.bytes)))


def footprint(training: TrainingGraph, storage: Storage, static: Mapping[str, int]) -> Footprint:
    """Lifetimes under the in-place choices of ``storage`` (`echo.estimators.mxnet_storage.plan_storage`)."""
    groups = _groups(training, storage)
    changes = np.zeros(len(training.nodes) + 1, np.int64)
    np.add.at(changes, groups.first, groups.bytes)
    np.subtract.at(changes, groups.last + 1, groups.bytes)
    live = np.cumsum(changes)[:-1]
    peak_node = int(np.argmax(live)) if len(live) else 0
    at_peak: dict[str, int] = {}
    for first, last, size in groups.rows((groups.first <= peak_node) & (peak_node <= groups.last)):
        kind = _kind(training, first, last)
        at_peak[kind] = at_peak.get(kind, 0) + size
    return Footprint(live, peak_node, at_peak, _stashed_by_layer(training, groups), static)


@dataclass(frozen=True)
class Lifetime:
    """An array of a training graph, or several that share memory in place: ``bytes`` alive from node to node.

    ``node`` is the node that computes it, ``last`` its last reader; ``kind`` and ``layer`` as in a `Footprint`.
    """

    node: int
    last: int
    bytes: int
    kind: str
    layer: str


def lifetimes(training: TrainingGraph, storage: Storage) -> Iterator[Lifetime]:
    """Every array that the planner owns, in the order in which they are computed."""
    groups, layer_of = _groups(training, storage), Layers(training)
    for first, last, size in groups.rows(groups.first >= 0):
        yield Lifetime(first, last, size, _kind(training, first, last), layer_of(first))


def held_at_peak(training: TrainingGraph, storage: Storage, peak_node: int, most: int = 5) -> list[tuple[str, int]]:
    """The largest entries alive while ``peak_node`` runs: (name, bytes)."""
    groups = _groups(training, storage)
    alive = groups.rows((groups.first <= peak_node) & (peak_node <= groups.last))
    largest = sorted(alive, key=lambda row: -row[2])[:most]
    return [(training.nodes[first].name, size) for first, _, size in largest]


def _groups(training: TrainingGraph, storage: Storage) -> _Groups:
    starts, node_of = np.array(training.first_entry, np.int64), training.node_of
    chunk, inplace = np.array(storage.chunk, np.int64), np.array(storage.inplace, np.int64)
    arrays = training.arrays
    owned = (chunk >= 0) & (arrays["variable"][node_of] == 0) & (arrays["untouched"] == 0)
    last = np.minimum(training.last_use, len(training.nodes) - 1)
    reads = training.reads
    begin = np.searchsorted(reads.reader, np.arange(len(training.nodes)))
    root = np.arange(len(node_of))
    taking = np.flatnonzero(owned & (inplace >= 0))
    read = begin[node_of[taking]] + inplace[taking]
    source = starts[reads.source[read]] + reads.index[read]
    root[taking] = np.where(owned[source], source, taking)
    while (root[root] != root).any():
        root = root[root]
    sizes = arrays["elements"] * arrays["dtype_size"]
    ends, largest = np.zeros_like(root), np.zeros_like(root)
    np.maximum.at(ends, root[owned], last[owned])
    np.maximum.at(largest, root[owned], sizes[owned])
    roots = np.flatnonzero(owned & (root == np.arange(len(root))))
    return _Groups(node_of[roots], ends[roots], largest[roots])


def _is_stashed(training: TrainingGraph, first: int, last: int) -> bool:
    return training.nodes[first].forward and not training.nodes[last].forward


def _kind(training: TrainingGraph, first: int, last: int) -> str:
    node = training.nodes[first]
    if node.forward:
        return FEATURE_MAPS if _is_stashed(training, first, last) else TEMPORARIES
    return RECOMPUTED if node.user is not None else OUTPUT_GRADIENTS


def _stashed_by_layer(training: TrainingGraph, groups: _Groups) -> dict[str, int]:
    layers: dict[str, int] = {}
    layer_of = Layers(training)
    for first, last, size in groups.rows(groups.first >= 0):
        if _is_stashed(training, first, last):
            layer = layer_of(first)
            layers[layer] = layers.get(layer, 0) + size
    return dict(sorted(layers.items(), key=lambda item: -item[1]))
