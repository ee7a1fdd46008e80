"""The footprint: the bytes of a training step by kind and by layer, workspaces, and the peak of the process."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from echo.estimators.mxnet_storage import Storage
from echo.ir.graph import PREFIX, VARIABLE
from echo.ir.schedule import CLONE_SUFFIX
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode
from echo.kernels.library import operator_workspace

# Layers of a training graph by readable names, for reports alone.

MIRROR_SUFFIX = "_mirror"  # which MXNet gives to what it recomputes
_OF_ECHO = re.compile(r"(_echo\d*)+$")  # nodes that take the place of the user's with this name
_COUNTER = re.compile(r"^t?\d+$|(?<=\D)\d+$")
_NUMBERED = re.compile(r"(_?[a-z_]*[a-z])\d+")
_OF_FORWARD = ("_backward", CLONE_SUFFIX, MIRROR_SUFFIX)


def layer_of(node: TrainingNode) -> str:
    """Returns a layer's name by one node: the first words of the node's name, with "*" for counters."""
    return layer_named(node.name) or node.op


def layer_named(name: str) -> str:
    """Returns the layer's name that a node with this name gives, empty if the name has no words."""
    words = [_COUNTER.sub("*", word) for word in _OF_ECHO.sub("", name).split("_") if word]
    return "_".join(words[:2])


class Layers:
    """Names the layer of each node of a training graph.

    A gradient, or what is recomputed, counts to the layer of its node of the forward pass. What the user gave no name,
    and MXNet numbers (``broadcast_add12``, ``_plus3``), counts to the layer of the first feature map that it reads.
    """

    def __init__(self, training: TrainingGraph) -> None:
        self._nodes = training.nodes
        self._forward = {node.name: number for number, node in enumerate(training.nodes) if node.forward}
        self._known: dict[int, str] = {}

    def __call__(self, number: int) -> str:
        """The layer of the node with this number."""
        path = [number]
        while path[-1] not in self._known:
            following = self._following(path[-1])
            if following is None:
                self._known[path[-1]] = layer_of(self._nodes[path[-1]])
            else:
                path.append(following)
        layer = self._known[path[-1]]
        self._known.update(dict.fromkeys(path, layer))
        return layer

    def _following(self, number: int) -> int | None:
        """The node to whose layer this one counts; None where it has a layer of its own."""
        node = self._nodes[number]
        for suffix in _OF_FORWARD:
            source = self._forward.get(node.name[: -len(suffix)]) if node.name.endswith(suffix) else None
            if source is not None and source < number:
                return source
        if not has_automatic_name(node.op, node.name):
            return None
        reads = (entry.node for entry in node.inputs if self._nodes[entry.node].op != VARIABLE)
        return next((read for read in reads if read < number), None)


def has_automatic_name(op: str, name: str) -> bool:
    """Whether MXNet gave a node of this operator its name (``broadcast_add12``, ``_plus3``)."""
    numbered = _NUMBERED.fullmatch(name)
    return numbered is not None and (name.startswith("_") or numbered[1] == op.lower().lstrip("_"))


# The workspaces of fused operators: memory that an operator needs while it runs, which no memory plan has.
#
# An MXNet operator draws such memory from one of some slots when it runs. A slot grows to the largest that was ever
# drawn from it, and is never given back. An executor draws from one of them alone; the operators of a CachedOp
# draw from all of them in turn (MXNET_CPU_TEMP_COPY, MXNET_GPU_TEMP_COPY), so that each may grow to the largest in
# the end: whether it does depends on how many of MXNet's own operators draw in between, which is not known.
#
# What MXNet's own operators draw is known only when they run, as cuDNN's convolutions choose it. It counts as
# nothing, in the original graph and in others: so a plan never promises more than it saves.

_BACKENDS = {"cpu": "cpu", "gpu": "cuda"}


def workspaces(training: TrainingGraph, device: str) -> Mapping[int, int]:
    """The bytes that each fused operator of a training graph, or its gradient, draws; by the forward node's number.

    Raises:
        KernelError: a fused operator has inputs that its kernel does not take.
    """
    bytes_by_key: dict[object, int] = {}
    bytes_of: dict[int, int] = {}
    for number, kernel in _fused(training):
        node = training.nodes[number]
        types = [training.type_of(entry) for entry in node.inputs]
        shapes, dtype = tuple(tensor.shape for tensor in types), types[0].dtype
        key = kernel, tuple(node.attrs.items()), shapes, dtype
        if key not in bytes_by_key:
            bytes_by_key[key] = operator_workspace(kernel, node.attrs, shapes, dtype, _BACKENDS[device])
        bytes_of[number] = bytes_by_key[key]
    return bytes_of


def _fused(training: TrainingGraph) -> Iterator[tuple[int, str]]:
    for number, node in training.operators():
        if node.forward and node.op.startswith(PREFIX):
            yield number, node.op[len(PREFIX) :]


# The footprint of a training graph: bytes of every entry, lifetimes, the timeline of live bytes and its peak.
#
# An entry lives from the node that computes it to its last reader; entries that share memory in place count once;
# what the graph returns lives to the end. What the planner does not own (arguments, gradients of arguments, auxiliary
# states) is counted apart: it is there all the time.

FEATURE_MAPS, RECOMPUTED = "feature maps", "recomputed maps"
OUTPUT_GRADIENTS, TEMPORARIES = "map gradients", "temporaries"
WEIGHTS, INPUTS, GRADIENTS, AUXILIARY = "weights", "inputs", "weight gradients", "auxiliary states"
OPTIMIZER = "optimizer states"


@dataclass(frozen=True)
class Footprint:
    """``live[i]`` is the bytes alive while node i of the training graph runs; ``peak_node`` is where it is largest.

    ``at_peak`` splits the peak by kind, ``layers`` the feature maps stashed for the backward pass by layer.
    """

    live: npt.NDArray[np.int64]
    peak_node: int
    at_peak: Mapping[str, int]
    layers: Mapping[str, int]

    @property
    def peak(self) -> int:
        """Largest number of bytes alive at once, without what is there all the time."""
        return int(self.live[self.peak_node]) if len(self.live) else 0


@dataclass(frozen=True)
class _Groups:
    """Groups of entries sharing memory in place, as arrays: alive from ``first`` to ``last``; sorted by ``first``.

    ``named`` is the node that a group is called by: the first of the forward pass whose output a gradient reads, or
    else the first.
    """

    named: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]

    def alive(self, node: int) -> npt.NDArray[np.bool_]:
        return (self.first <= node) & (node <= self.last)

    def rows(self, mask: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int, int, int]]:
        """(named, first, last, bytes) of the groups in ``mask``."""
        return zip(*(column[mask].tolist() for column in (self.named, self.first, self.last, self.bytes)))


def footprint(training: TrainingGraph, storage: Storage) -> Footprint:
    """Lifetimes under the in-place choices of ``storage`` (`echo.estimators.mxnet_storage.plan_storage`)."""
    groups = _groups(training, storage)
    changes = np.zeros(len(training.nodes) + 1, np.int64)
    np.add.at(changes, groups.first, groups.bytes)
    np.subtract.at(changes, groups.last + 1, groups.bytes)
    live = np.cumsum(changes)[:-1]
    peak_node = int(np.argmax(live)) if len(live) else 0
    at_peak: Counter[str] = Counter()
    for _, first, last, size in groups.rows(groups.alive(peak_node)):
        at_peak[_kind(training, first, last)] += size
    layers: Counter[str] = Counter()
    layer_of = Layers(training)
    for named, first, last, size in groups.rows(groups.first >= 0):
        if _kind(training, first, last) == FEATURE_MAPS:
            layers[layer_of(named)] += size
    return Footprint(live, peak_node, at_peak, dict(layers.most_common()))


@dataclass(frozen=True)
class Lifetime:
    """An array of a training graph, or several that share memory in place: ``bytes`` alive from node to node.

    ``node`` is the node that it is called by (`_Groups`), ``first`` the first that computes it, ``last`` its last
    reader; ``kind`` and ``layer`` as in a `Footprint`.
    """

    node: int
    first: int
    last: int
    bytes: int
    kind: str
    layer: str


def lifetimes(training: TrainingGraph, storage: Storage) -> Iterator[Lifetime]:
    """Every array that the planner owns, in the order in which they are computed."""
    groups, layer_of = _groups(training, storage), Layers(training)
    for named, first, last, size in groups.rows(groups.first >= 0):
        yield Lifetime(named, first, last, size, _kind(training, first, last), layer_of(named))


def held_at_peak(training: TrainingGraph, storage: Storage, peak_node: int, most: int = 5) -> list[tuple[str, int]]:
    """The nodes with the largest entries alive while ``peak_node`` runs: (name, bytes of all its entries)."""
    groups = _groups(training, storage)
    sizes: Counter[str] = Counter()
    for named, _, _, size in groups.rows(groups.alive(peak_node)):
        sizes[training.nodes[named].name] += size
    return sizes.most_common(most)


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
    forward = np.array([node.forward for node in training.nodes], np.bool_)
    read = owned & forward[node_of] & ~forward[last]
    named = np.full_like(root, len(training.nodes))
    np.minimum.at(named, root[read], node_of[read])
    named = np.where(named < len(training.nodes), named, node_of)
    return _Groups(named[roots], node_of[roots], ends[roots], largest[roots])


def _kind(training: TrainingGraph, first: int, last: int) -> str:
    node = training.nodes[first]
    if node.forward:
        return TEMPORARIES if training.nodes[last].forward else FEATURE_MAPS
    return RECOMPUTED if node.original is not None else OUTPUT_GRADIENTS


# The peak of a training process on a CPU, as Linux counts it (VmHWM), from the parts that it is made of.
#
# A memory plan is only a part of what users watch. Each part has a source:
#
# ``HELD``
#   what the process holds before the first step, measured (VmRSS): Python, MXNet, data, and weights, without `OWN`.
# ``OWN``
#   echo's code, its hook and its plans (`OWN_BYTES`).
# ``ARRAYS``
#   weights, gradients, inputs and states that a bind has yet to allocate: their shapes.
# ``STATES``
#   what the optimizer keeps: its own arrays after the first update, or the number that the user gives.
# ``PLANNED``
#   what MXNet's memory planner assigns to the graph. Every chunk is written to in the first steps.
# ``OUTSIDE``
#   outputs of a Gluon block, which are no part of its plan, and what a loss outside of the graph makes of them: the
#   output, its gradient, and one more array (`OUTPUT_COPIES`; measured on softmax losses over 33,278 and 8,000 words).
# ``WORKSPACE_SLOTS``
#   MXNet's workspace slots, into which oneDNN lays out feature maps and weights again (`workspace_slot_bytes`).
# ``WORKSPACES``, ``INSIDE``, ``COPIES``
#   what fused operators draw, what oneDNN's RNN keeps, what clones keep: the plan has them (`echo.plans.decisions`).
# ``CODE``
#   pages of MXNet's library and oneDNN's kernels that the first step loads, and the engine's threads: 11 MB, measured.
# ``SEEN``
#   what the first step needed beyond these parts, measured (VmHWM): a loss outside of the graph, oneDNN's scratch
#   memory for kernels wider than 14, which it unfolds, or an earlier graph. It is known only after that step.
# ``HOLES``
#   what the C library keeps of freed arrays. MXNet allocates the arrays of a graph at each step unless it has
#   ``static_alloc``, and glibc returns only blocks above its threshold, which grows up to 32 MB (with echo, 16 MiB:
#   `echo.system.process`). Which holes later arrays fill depends on their order: no exact figure exists. One share of
#   what is planned is assumed for all models (`HOLE_SHARE`); 0.06 to 0.5 were measured.

HELD, OWN, ARRAYS, STATES = "held by the process before", "echo itself", "arrays to come", "optimizer states"
PLANNED = "planned"
OUTSIDE, WORKSPACE_SLOTS, WORKSPACES = "outputs and their loss", "temporary spaces", "workspaces of fused operators"
INSIDE, COPIES = "inside of operators", "plain copies of maps"
CODE, HOLES, SEEN = "code loaded by a step", "holes of the heap", "seen in the first step beyond these"

OUTPUT_COPIES = 3
CODE_BYTES = 11 * 10**6
OWN_BYTES = 10 * 10**6  # of echo's code, its hook and its plans, which a process without echo does not hold
IMPORTED_BYTES = 143 * 10**6  # of Python with mxnet and numpy, before anything runs
NODE_BYTES = 12_000  # of one operator's node, its gradient's and their executors', in Python and in MXNet
SLOT_SHARE = 1.0  # of the largest feature map, or weight, that is laid out again, in the first slot
FURTHER_SLOT_SHARE = 0.5  # of it, in each further one: slots are handed out in turn, and not all get the largest
HOLE_SHARE = 0.2  # of what is planned, where arrays are allocated at each step


@dataclass(frozen=True)
class ProcessPeak:
    """The predicted peak of a process in bytes, by part; parts of 0 bytes are left out."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def process_peak(parts: Mapping[str, int], at_least: int = 0) -> ProcessPeak:
    """The peak of these parts, and of what is `SEEN` if the process is known to need ``at_least`` so many bytes."""
    seen = parts.get(SEEN, 0) + max(at_least - sum(parts.values()), 0)
    return ProcessPeak({name: size for name, size in {**parts, SEEN: seen}.items() if size})


def workspace_slot_bytes(largest: int, workspace_slots: int) -> int:
    """The bytes that are written to in MXNet's workspace slots, of which one graph has ``workspace_slots``.

    ``largest`` is the largest feature map or weight that oneDNN lays out again. A slot is allocated twice as large,
    for an input and an output, and half of it is written to.
    """
    return int(largest * (SLOT_SHARE + FURTHER_SLOT_SHARE * (workspace_slots - 1))) if workspace_slots else 0


def hole_bytes(planned: int, dynamic: bool) -> int:
    """The bytes that the heap keeps alongside planned arrays; ``dynamic``: these are allocated at each step."""
    return int(HOLE_SHARE * planned) if dynamic else 0
