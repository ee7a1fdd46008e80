"""MXNet's storage planner, specified in plain Python (the pass MXPlanMemory of MXNet 1.9.1).

Going through the nodes in execution order, an entry takes the free chunk whose size is nearest to its own within the
match range, or a new one; an operator that may work in place takes over the chunk of an input that nobody else needs.
The total is the sum of all chunks. ``echo/native/planner/storage.cc`` does the same faster and is tested against this.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from echo.training_graph import TrainingGraph, TrainingNode

_NONE, _EXTERNAL = -1, -2
_BYTES_AN_ELEMENT = 4  # MXNet counts so for every type


@dataclass(frozen=True)
class Storage:
    """``chunk[e]``: the chunk of entry e (negative: not the planner's); ``chunk_bytes``: the size of each chunk.

    ``inplace[e]``: the input whose memory entry e takes over, or -1.
    """

    chunk: tuple[int, ...]
    chunk_bytes: tuple[int, ...]
    inplace: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.chunk_bytes)


class _FreeChunks:
    """A multimap from size to chunk in which equal sizes keep the order of their release."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, int]] = []
        self._chunks: list[int] = []
        self._count = 0

    def add(self, size: int, chunk: int) -> None:
        at = bisect.bisect_right(self._keys, (size, self._count))
        self._keys.insert(at, (size, self._count))
        self._chunks.insert(at, chunk)
        self._count += 1

    def take(self, size: int, match_range: int) -> int | None:
        if match_range == 0:
            return None  # MXNet's way of saying that chunks are not shared
        at = bisect.bisect_left(self._keys, (size, -1))
        if not (at < len(self._keys) and self._keys[at][0] <= size * match_range):
            at -= 1
            if at < 0 or self._keys[at][0] < size // match_range:
                return None
        del self._keys[at]
        return self._chunks.pop(at)


class _Allocator:
    def __init__(self, training: TrainingGraph, match_range: int) -> None:
        self.training, self.match_range = training, match_range
        kinds = [(node, index) for node in training.nodes for index in range(len(node.outputs))]
        self.chunk = [_EXTERNAL if index in node.external else _NONE for node, index in kinds]
        self.inplace = [-1] * len(kinds)
        self.readers = [0] * len(kinds)
        self.pending: list[int] = []  # reads of each chunk that are still to come
        self.bytes: list[int] = []
        self.free = _FreeChunks()
        for _, node in training.operators():
            for position, entry in enumerate(node.inputs):
                if position not in node.ignored:
                    self.readers[training.entry_id(entry)] += 1
        for entry in training.outputs:
            self.readers[training.entry_id(entry)] += 1

    def share_inputs(self, node: TrainingNode, first: int) -> None:
        taken: set[int] = set()
        ignores_all = bool(node.inputs) and len(node.ignored) == len(node.inputs)
        for position, output, may_be_identity in node.inplace:
            source, target = self.training.entry_id(node.inputs[position]), first + output
            old, new = self.training.type_of(node.inputs[position]), node.outputs[output]
            chunk = self.chunk[source]
            if position in taken or self.chunk[target] != _NONE or chunk < 0 or not self.readers[target]:
                continue
            if (old.elements, old.itemsize) != (new.elements, new.itemsize):
                continue
            identity = may_be_identity and old.flag == new.flag
            if identity or (self.pending[chunk] == 1 and not ignores_all):
                taken.add(position)
                self.chunk[target] = chunk
                self.inplace[target] = position
                self.pending[chunk] += self.readers[target]

    def allocate(self, node: TrainingNode, first: int) -> None:
        wanted = [i for i in range(len(node.outputs)) if self.chunk[first + i] == _NONE]
        for index in reversed(sorted(wanted, key=lambda i: node.outputs[i].elements)):
            size = node.outputs[index].elements * _BYTES_AN_ELEMENT
            chunk = self.free.take(size, self.match_range)
            if chunk is None:
                chunk = len(self.bytes)
                self.bytes.append(0)
                self.pending.append(0)
            self.bytes[chunk] = max(self.bytes[chunk], size)
            self.pending[chunk] = self.readers[first + index]
            self.chunk[first + index] = chunk

    def release(self, node: TrainingNode, first: int) -> None:
        for position, entry in enumerate(node.inputs):
            chunk = self.chunk[self.training.entry_id(entry)]
            if position in node.ignored or chunk < 0:
                continue
            self.pending[chunk] -= 1
            if self.pending[chunk] == 0:
                self.free.add(self.bytes[chunk], chunk)
        for index in range(len(node.outputs)):
            chunk = self.chunk[first + index]
            if chunk >= 0 and self.pending[chunk] == 0:
                self.free.add(self.bytes[chunk], chunk)


def plan_storage(training: TrainingGraph, match_range: int = 16) -> Storage:
    """The storage that MXNet would plan for this training graph."""
    allocator = _Allocator(training, match_range)
    for number, node in training.operators():
        first = training.first_entry[number]
        allocator.share_inputs(node, first)
        allocator.allocate(node, first)
        allocator.release(node, first)
    return Storage(tuple(allocator.chunk), tuple(allocator.bytes), tuple(allocator.inplace))
