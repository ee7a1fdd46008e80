"""The storage planner: the bytes that a choice of recomputed nodes needs, by the native twin of MXNet's planner."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass
from typing import Any, Protocol, Sequence

import numpy as np
import numpy.typing as npt

from echo.errors import NativeError
from echo.estimators.mxnet_storage import Storage, plan_storage
from echo.ir.graph import Entry
from echo.ir.schedule import RecomputeSchedule, with_clones
from echo.ir.training_graph import Runner, TrainingGraph
from echo.native import planner_library

# MXNet's memory planner, replayed: the exact bytes of any choice of recomputed feature maps.
#
# The native library does it in about a tenth of a microsecond a node; `echo.estimators.mxnet_storage` is its
# specification and takes over where the library is missing.


class _Arrays(ctypes.Structure):
    _fields_ = (
        [(name, ctypes.c_int32) for name in ("nodes", "entries", "outputs", "runner", "reuse_delay")]
        + [
            (name, ctypes.c_void_p)
            for name in (
                "entry_begin", "input_begin", "input_entry", "input_shape_only", "input_in_kernel", "dep_begin",
                "dep_node", "inplace_begin", "inplace", "variable", "forward", "masked", "elements", "dtype",
                "dtype_size", "external", "untouched", "handed_out", "output_entry", "layout_copy_bytes", "seconds",
            )
        ]
    )  # fmt: skip


_NO_SPLITS = np.zeros(0, np.int32), np.zeros(0, np.int32)
_NO_ADDRESSES = _NO_SPLITS[0].ctypes.data, _NO_SPLITS[1].ctypes.data  # numpy takes as long for one as a tiny evaluation


def flat(schedule: RecomputeSchedule) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """A schedule as the native library reads it: nodes and positions, sorted."""
    if not schedule:
        return _NO_SPLITS
    nodes = sorted(schedule)
    positions = [schedule[node] for node in nodes]
    counts = np.fromiter(map(len, positions), np.int64, len(positions))
    node = np.repeat(np.array(nodes, np.int32), counts)
    return node, np.fromiter(itertools.chain.from_iterable(positions), np.int32, len(node))


class StoragePlanner:
    """Evaluates choices on one training graph. Not thread-safe: one planner a thread.

    ``seconds[i]`` is the time that node i takes if it runs once more.
    """

    def __init__(self, training: TrainingGraph, seconds: Sequence[float]) -> None:
        library = planner_library()
        self._buffers: dict[str, npt.NDArray[Any]] = {
            **training.arrays,
            "masked": np.array([node.is_masked for node in training.nodes], np.uint8),
            "seconds": np.array(seconds, np.float64),
        }
        self.entries = training.first_entry[-1]
        self.arrays = _Arrays(
            len(training.nodes),
            self.entries,
            len(training.outputs),
            tuple(Runner).index(training.runner),
            training.pool.reuse_delay if training.pool else 0,
            **{name: buffer.ctypes.data for name, buffer in self._buffers.items()},
        )
        self._library = library
        self._nodes = len(training.nodes)
        self._handle = library.echo_planner_new(ctypes.byref(self.arrays))

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle:
            self._library.echo_planner_free(handle)

    def evaluate(
        self,
        recompute: RecomputeMask,
        match_ranges: Sequence[int],
        limit: int | None = None,
        schedule: RecomputeSchedule | None = None,
    ) -> Evaluation:
        """Plans the graph in which the entries with ``recompute[entry_id] = 1`` are recomputed.

        Their nodes are recomputed once, or as the ``schedule`` says. With a ``limit`` in bytes the work stops early:
        only ``bytes`` is meant to be read, and exact up to the limit.
        """
        return self._evaluate(recompute, match_ranges, limit, schedule or {}, None)

    def executed(self, recompute: RecomputeMask, schedule: RecomputeSchedule | None = None) -> RecomputeMask:
        """``executed[i]``: how often forward node i is recomputed under this choice (255: or more often)."""
        executed = np.zeros(self._nodes, np.uint8)
        self._evaluate(recompute, (), None, schedule or {}, executed)
        return executed

    def blocks(self) -> Storage:
        """The storage of the graph without clones, each block in a chunk of its own: only in-place operators share.

        As `echo.estimators.mxnet_storage.plan_storage` with match range 0, but for sizes, which are left out.
        """
        chunk, inplace = np.empty(self.entries, np.int32), np.empty(self.entries, np.int32)
        self._library.echo_planner_blocks(self._handle, chunk.ctypes.data, inplace.ctypes.data)
        return Storage(tuple(chunk.tolist()), (), tuple(inplace.tolist()), 0)

    def _evaluate(
        self,
        recompute: RecomputeMask,
        match_ranges: Sequence[int],
        limit: int | None,
        schedule: RecomputeSchedule,
        executed: RecomputeMask | None,
    ) -> Evaluation:
        if recompute.shape != (self.entries,) or recompute.dtype != np.uint8:
            raise ValueError(f"expected {self.entries} uint8, got {recompute.shape} {recompute.dtype}")
        numbers = ctypes.c_int64 * len(match_ranges)
        ranges, totals = numbers(*match_ranges), numbers()
        split_node, split_position = flat(schedule)
        splits = (split_node.ctypes.data, split_position.ctypes.data) if schedule else _NO_ADDRESSES
        seconds = self._library.echo_planner_evaluate(
            self._handle,
            np.ascontiguousarray(recompute).ctypes.data,
            len(split_node),
            *splits,
            ranges,
            len(ranges),
            -1 if limit is None else max(0, limit),
            totals,
            None if executed is None else executed.ctypes.data,
        )
        return Evaluation(tuple(totals), float(seconds))


class ReferencePlanner:
    """The storage planner in plain Python, several hundred times slower: for machines without the native library."""

    def __init__(self, training: TrainingGraph, seconds: Sequence[float]) -> None:
        self._training, self._seconds = training, seconds
        self._entries = [Entry(i, o) for i, node in enumerate(training.nodes) for o in range(len(node.outputs))]
        self.entries = len(self._entries)

    def _planned(self, recompute: RecomputeMask, schedule: RecomputeSchedule | None) -> TrainingGraph:
        chosen = (self._entries[index] for index in recompute.nonzero()[0])
        return with_clones(self._training, chosen, schedule)

    def _clones(self, planned: TrainingGraph) -> list[int]:
        clones = (node.original for node in planned.nodes if not node.forward)
        return [self._training.number_of[original] for original in clones if original is not None]

    def evaluate(
        self,
        recompute: RecomputeMask,
        match_ranges: Sequence[int],
        limit: int | None = None,
        schedule: RecomputeSchedule | None = None,
    ) -> Evaluation:
        """As `StoragePlanner.evaluate`; a limit changes nothing."""
        planned = self._planned(recompute, schedule)
        clones = self._clones(planned)
        seconds = sum(self._seconds[number] for number in clones)
        kept = sum(self._training.nodes[number].layout_copy_bytes for number in clones)
        return Evaluation(tuple(plan_storage(planned, value).total + kept for value in match_ranges), seconds)

    def executed(self, recompute: RecomputeMask, schedule: RecomputeSchedule | None = None) -> RecomputeMask:
        """As `StoragePlanner.executed`."""
        executed = np.zeros(len(self._training.nodes), np.int64)
        np.add.at(executed, self._clones(self._planned(recompute, schedule)), 1)
        return np.minimum(executed, 255).astype(np.uint8)


def blocks(training: TrainingGraph) -> Storage:
    """Which entries of a training graph share memory in place: `StoragePlanner.blocks`, or the slow reference."""
    try:
        return StoragePlanner(training, [0.0] * len(training.nodes)).blocks()
    except NativeError:
        return plan_storage(training, 0)


def planned_bytes(training: TrainingGraph, match_range: int) -> int:
    """The bytes that MXNet plans for a training graph."""
    planner, _ = make_planner(training, [0.0] * len(training.nodes))
    return planner.evaluate(np.zeros(planner.entries, np.uint8), (match_range,)).bytes


# Visited nodes that a search may spend: a fraction of a second with the native planner, one to three seconds without.
_NATIVE_EFFORT, _REFERENCE_EFFORT = 5_000_000, 300_000
# Where that is fewer evaluations than this, the native planner spends more: with 140 of them, the search finds 2 % more
# than the least bytes on unrolled LSTMs of 10,000 to 100,000 nodes, with 33 up to half of them.
_NATIVE_EVALUATIONS = 200


def make_planner(training: TrainingGraph, seconds: Sequence[float]) -> tuple[Evaluator, int]:
    """The fastest planner there is, and the effort that a search may spend on it, in visited nodes."""
    try:
        effort = max(_NATIVE_EFFORT, _NATIVE_EVALUATIONS * len(training.nodes))
        return StoragePlanner(training, seconds), effort
    except NativeError:
        return ReferencePlanner(training, seconds), _REFERENCE_EFFORT


# The cost of a choice of recomputed feature maps, in bytes and seconds, and the protocol of its evaluators.

RecomputeMask = npt.NDArray[np.uint8]  # one number an entry: 1 where gradients read it from a clone


@dataclass(frozen=True)
class Evaluation:
    """Planned bytes under each match range, seconds of recomputation in a step."""

    totals: tuple[int, ...]
    seconds: float

    @property
    def bytes(self) -> int:
        return min(self.totals)

    @property
    def best(self) -> int:
        """The position of the match range with the fewest bytes."""
        return self.totals.index(self.bytes)


class Evaluator(Protocol):
    """Plans the storage of choices on one training graph of ``entries`` entries."""

    entries: int

    def evaluate(
        self,
        recompute: RecomputeMask,
        match_ranges: Sequence[int],
        limit: int | None = None,
        schedule: RecomputeSchedule | None = None,
    ) -> Evaluation:
        """Plans a choice; ``schedule`` says where nodes are recomputed, by default once for all backward nodes.

        With a ``limit`` in bytes only ``bytes`` is meant to be read, exact up to the limit.
        """

    def executed(self, recompute: RecomputeMask, schedule: RecomputeSchedule | None = None) -> RecomputeMask:
        """``executed[i]``: how often forward node i is recomputed under this choice."""
