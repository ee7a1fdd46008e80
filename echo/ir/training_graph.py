"""The training graph: forward and backward nodes, the storages of their outputs, and equal nodes as one."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Hashable, Iterable, Mapping, Sequence

from echo.errors import GraphError
from echo.ir.graph import Entry, Graph
from echo.ir.op_spec import GradientRule
from echo.ir.training_node import TensorType, TrainingNode, check_nodes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# How memory is handed out: echo's own storage methods, and the pool that MXNet keeps for a device.


class StorageStrategy(IntEnum):
    """Ways to plan storage other than MXNet's memory planner, as numbers that no match range of it has.

    Attributes:
        ASSIGNED: echo's own assignment (`echo.estimators.mxnet_storage`).
        PEAK: the most bytes alive at once, which no assignment goes below: never applied, but quick to search by.
    """

    ASSIGNED = -1
    PEAK = -2

    def __str__(self) -> str:
        return str(int(self))


@dataclass(frozen=True)
class MemoryPool:
    """A pool that keeps freed blocks, and hands each of them out again only for requests of the same size.

    Requests get a multiple of ``page`` or, where ``powers`` is set, a power of two that is no smaller; what is more
    than ``coarse`` bytes then becomes a multiple of that. A block is back in the pool ``reuse_delay`` nodes after its
    last reader.
    """

    page: int
    coarse: int
    powers: bool
    reuse_delay: int = 0

    def handed_out(self, size: int) -> int:
        """The bytes of the block that a request of ``size`` bytes gets."""
        if not self.powers:
            size = _multiple(max(size, 1), self.page)
        if size > self.coarse:
            return _multiple(size, self.coarse)
        return max(self.page, 1 << (size - 1).bit_length() if size else 1) if self.powers else size


def _multiple(size: int, unit: int) -> int:
    return -(-size // unit) * unit


# Nodes that MXNet merges into an equal one before it differentiates (its pass EliminateCommonExpr).


def common_subexpressions(graph: Graph, training: TrainingGraph) -> dict[int, int]:
    """Maps each node of the original graph that MXNet merged into an equal one to the number of that equal node."""
    present = {node.original for node in training.nodes if node.original is not None}
    merged_into: dict[int, int] = {}
    if len(present) == len(graph.nodes):
        return merged_into
    kept_as: dict[tuple[object, ...], int] = {}
    for number, node in enumerate(graph.nodes):
        inputs = tuple((merged_into.get(entry.node, entry.node), entry.index) for entry in node.inputs)
        key = (node.op, tuple(sorted(node.attrs.items())), inputs)
        if number in present:
            kept_as.setdefault(key, number)
        elif key in kept_as:
            merged_into[number] = kept_as[key]
    return merged_into


# The training graph: forward and backward nodes in MXNet's execution order, as MXNet's own gradient pass makes them.
#
# It says what the planner must know and could only guess otherwise: which forward entries each gradient reads, in
# which order everything runs, which operators may work in place, and which inputs are read for their shape alone.


class Runner(str, Enum):
    """What runs a training graph; its value is its text in files.

    An executor plans the memory of the whole graph at once. A CachedOp (Gluon) plans forward and backward nodes apart,
    and either keeps all of it (``static_alloc``; with ``static_shape`` its operators live on, too, as those of an
    executor do) or holds it only while it is needed.
    """

    EXECUTOR = "executor"
    STATIC = "static"
    DYNAMIC = "dynamic"
    SHAPED = "static shape"

    __hash__ = str.__hash__  # as the text

    def __str__(self) -> str:
        return str(self.value)

    @property
    def keeps_memory(self) -> bool:
        """Whether it is a CachedOp that keeps its memory."""
        return self in (Runner.STATIC, Runner.SHAPED)

    @staticmethod
    def of_flags(static_alloc: bool, static_shape: bool) -> Runner:
        """Returns the runner of a CachedOp with these flags; ``static_shape`` counts only with ``static_alloc``."""
        if not static_alloc:
            return Runner.DYNAMIC
        return Runner.SHAPED if static_shape else Runner.STATIC


GRADIENT_SUM = "_grad_add"  # of two gradients, the first of which may be a sum as well


@dataclass(frozen=True)
class Reads:
    """Every read in a training graph, in node order: node ``reader`` reads, as its input number ``position``, output
    ``index`` of node ``source``."""

    reader: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    source: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]


@dataclass(frozen=True)
class TrainingGraph:
    """Nodes in execution order; ``outputs`` are the symbol's outputs, then the gradients.

    ``planned_bytes`` is the total of MXNet's own memory planner for this graph as it stands, less chunks in which
    nothing is ever touched, which MXNet never allocates. ``accumulations`` says for each ``_grad_add``, in order,
    whether MXNet lets the gradient be accumulated in place by the operator that makes it: a matrix product that
    accumulates may round differently from one that is added. ``pool`` is where a
    `Runner.DYNAMIC` one gets its memory on a device, if MXNet keeps there what is freed. ``gradient_rules`` are
    the rules by which gradients of the user's nodes read other things than MXNet's own (`echo.ir.gradient_rules`);
    ``planned_bytes`` and ``accumulations`` are of the graph without them. ``no_inplace`` says of the user's nodes which
    in-place options they and their gradients must not take in a bind (`echo.estimators.inplace`).
    """

    nodes: tuple[TrainingNode, ...]
    outputs: tuple[Entry, ...]
    num_forward_outputs: int
    planned_bytes: int
    accumulations: tuple[bool, ...] = ()
    runner: Runner = Runner.EXECUTOR
    pool: MemoryPool | None = None
    gradient_rules: Mapping[int, GradientRule] = field(default_factory=dict)
    no_inplace: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.runner, Runner):
            raise GraphError(f"runner: expected one of {', '.join(Runner)}, got {self.runner!r}")
        check_nodes(self.nodes)
        for entry in self.outputs:
            if not (0 <= entry.node < len(self.nodes) and 0 <= entry.index < len(self.nodes[entry.node].outputs)):
                raise GraphError(f"output {tuple(entry)}: there is no such entry")

    @cached_property
    def first_entry(self) -> tuple[int, ...]:
        """``first_entry[i]`` is the number of node i's first entry; the last item is the number of entries."""
        return tuple(itertools.accumulate([len(node.outputs) for node in self.nodes], initial=0))

    def entry_id(self, entry: Entry) -> int:
        """The number of an entry: consecutive, in node order."""
        return self.first_entry[entry.node] + entry.index

    def type_of(self, entry: Entry) -> TensorType:
        """Shape and type of an entry."""
        return self.nodes[entry.node].outputs[entry.index]

    @cached_property
    def reads(self) -> Reads:
        """The reads of entries by nodes, as arrays of numbers."""
        import numpy as np  # plans name runners, and echo is imported without numpy

        counts = np.array([len(node.inputs) for node in self.nodes], np.int64)
        begin = np.cumsum(counts) - counts
        flat = itertools.chain.from_iterable(itertools.chain.from_iterable(node.inputs for node in self.nodes))
        entries = np.fromiter(flat, np.int64, 3 * int(counts.sum())).reshape(-1, 3)
        position = np.arange(len(entries)) - np.repeat(begin, counts)
        return Reads(np.repeat(np.arange(len(counts)), counts), position, entries[:, 0], entries[:, 1])

    @cached_property
    def arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        """The graph as the native planner reads it, by the names in ``echo/native/planner/graph.h``."""
        import numpy as np

        nodes, reads = self.nodes, self.reads
        tensors = [tensor for node in nodes for tensor in node.outputs]
        entry_begin = np.array(self.first_entry, np.int32)
        input_begin = _begins([len(node.inputs) for node in nodes])
        shape_only = np.zeros(len(reads.reader), np.uint8)
        shape_only[[input_begin[number] + i for number, node in enumerate(nodes) for i in node.shape_only]] = 1
        in_kernel = np.zeros(len(reads.reader), np.int32)
        for number, node in enumerate(nodes):
            for i, kernel in node.in_kernel.items():
                in_kernel[input_begin[number] + i] = kernel or -1
        external, untouched = np.zeros((2, len(tensors)), np.uint8)
        external[[entry_begin[number] + i for number, node in enumerate(nodes) for i in node.external]] = 1
        untouched[[entry_begin[number] + i for number, node in enumerate(nodes) for i in node.untouched]] = 1
        pool = self.pool
        handed_out = [] if pool is None else [pool.handed_out(4 * tensor.elements) for tensor in tensors]
        return {
            **({"handed_out": np.array(handed_out, np.int64)} if handed_out else {}),
            "entry_begin": entry_begin,
            "input_begin": input_begin,
            "input_entry": (entry_begin[reads.source] + reads.index).astype(np.int32),
            "input_shape_only": shape_only,
            "input_in_kernel": in_kernel,
            "dep_begin": _begins([len(node.control_deps) for node in nodes]),
            "dep_node": np.array([dep for node in nodes for dep in node.control_deps], np.int32),
            "inplace_begin": _begins([len(node.inplace) for node in nodes]),
            "inplace": np.array([triple for node in nodes for triple in node.inplace], np.int32),
            "variable": np.array([node.is_variable for node in nodes], np.uint8),
            "forward": np.array([node.forward for node in nodes], np.uint8),
            "elements": np.array([tensor.elements for tensor in tensors], np.int64),
            "dtype": np.array([tensor.flag for tensor in tensors], np.uint8),
            "dtype_size": np.array([tensor.itemsize for tensor in tensors], np.uint8),
            "external": external,
            "untouched": untouched,
            "output_entry": np.array(list(map(self.entry_id, self.outputs)), np.int32),
            "layout_copy_bytes": np.array([node.layout_copy_bytes for node in nodes], np.int64),
        }

    @cached_property
    def node_of(self) -> npt.NDArray[np.int64]:
        """The node that each entry is an output of, by `entry_id`."""
        import numpy as np

        return np.repeat(np.arange(len(self.nodes)), np.diff(np.array(self.first_entry)))

    @cached_property
    def last_use(self) -> npt.NDArray[np.int64]:
        """For each entry, by `entry_id`: the last node that reads its values, or the one that makes it.

        The number of nodes for an output of the graph.
        """
        import numpy as np

        counted = self.arrays["input_shape_only"] == 0
        last = self.node_of.copy()
        np.maximum.at(last, self.arrays["input_entry"][counted], self.reads.reader[counted])
        last[self.arrays["output_entry"]] = len(self.nodes)
        return last

    @cached_property
    def backward_readers(self) -> Mapping[Entry, tuple[int, ...]]:
        """For each forward entry, the backward nodes that read its values (not only its shape)."""
        readers: dict[Entry, list[int]] = {}
        for number, node in self.operators():
            if node.forward:
                continue
            for position, entry in enumerate(node.inputs):
                if position not in node.shape_only and self.nodes[entry.node].forward:
                    readers.setdefault(Entry(entry.node, entry.index), []).append(number)
        return {entry: tuple(numbers) for entry, numbers in readers.items()}

    @cached_property
    def backward(self) -> tuple[int, ...]:
        """The numbers of the operators of the backward pass, in order."""
        return tuple(number for number, node in self.operators() if not node.forward)

    @cached_property
    def number_of(self) -> Mapping[int, int]:
        """The number of the forward operator that stands for each of the user's nodes."""
        forward = ((node.original, number) for number, node in self.operators() if node.forward)
        return {original: number for original, number in forward if original is not None}

    @cached_property
    def memo(self) -> dict[Hashable, Any]:
        """What other rooms computed from this graph and may need again."""
        return {}

    def operators(self) -> tuple[tuple[int, TrainingNode], ...]:
        """The nodes that compute something, with their numbers."""
        return self._operators

    @cached_property
    def _operators(self) -> tuple[tuple[int, TrainingNode], ...]:
        return tuple((number, node) for number, node in enumerate(self.nodes) if not node.is_variable)


def added_outputs(terms: Iterable[tuple[int, int]], accumulations: Iterable[bool]) -> Mapping[int, frozenset[int]]:
    """The outputs of nodes that are added to other arrays, from the second term (node, output) of each `GRADIENT_SUM`
    and whether it is computed in place."""
    added: dict[int, frozenset[int]] = defaultdict(frozenset)
    for (number, output), in_place in zip(terms, accumulations):
        if in_place:
            added[number] |= {output}
    return added


def _begins(counts: Sequence[int]) -> npt.NDArray[np.int32]:
    """Returns the position at which each of consecutive rows with these lengths begins, and the end of the last one."""
    import numpy as np

    begin = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=begin[1:])
    return begin
