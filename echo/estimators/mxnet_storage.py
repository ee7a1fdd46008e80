"""MXNet's storage plan of a training graph, made as MXNet makes it, and echo's assignment of the same blocks.

These are the specifications of ``echo/native/planner/storage.cc`` and ``echo/native/storage/assign.h``.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import Iterable, Mapping, Sequence

from echo.ir.training_graph import MemoryPool, Runner, StorageStrategy, TrainingGraph
from echo.ir.training_node import TrainingNode

# echo's own storage assignment: which blocks of memory share a chunk.
#
# MXNet's greedy planner ends far above the bytes that are alive at once. Blocks with known lifetimes are intervals,
# and giving them chunks is interval colouring with sizes (as in Pisarchyk and Lee, 2020): the largest block first,
# each into the largest chunk that is free for its lifetime, or each into the smallest, whichever needs fewer bytes.
# It costs no time and changes no bits. This is the specification of ``echo/native/storage/assign.h``.


@dataclass(frozen=True)
class Block:
    """Bytes that are alive from node ``first`` to node ``last``, both included."""

    bytes: int
    first: int
    last: int


def assign_chunks(blocks: Sequence[Block]) -> tuple[list[int], list[int]]:
    """The chunk of each block, and the bytes of each chunk: the fewer bytes of two ways."""
    order = sorted(range(len(blocks)), key=lambda i: (-blocks[i].bytes, blocks[i].first, blocks[i].last, i))
    assignments = [_in_order(blocks, order, largest) for largest in (True, False)]
    return min(assignments, key=lambda assignment: sum(assignment[1]))


def _in_order(blocks: Sequence[Block], order: Sequence[int], largest: bool) -> tuple[list[int], list[int]]:
    chunk_of = [-1] * len(blocks)
    sizes: list[int] = []  # from large to small
    spans: list[list[tuple[int, int]]] = []  # (last, first) of the blocks in each chunk, none of which overlap
    for index in order:
        block = blocks[index]
        offered = range(len(sizes)) if largest else range(len(sizes) - 1, -1, -1)
        chunk = next((chunk for chunk in offered if _is_free(spans[chunk], block)), len(sizes))
        if chunk == len(sizes):
            sizes.append(block.bytes)
            spans.append([])
        bisect.insort(spans[chunk], (block.last, block.first))
        chunk_of[index] = chunk
    return chunk_of, sizes


def _is_free(spans: list[tuple[int, int]], block: Block) -> bool:
    after = bisect.bisect_left(spans, (block.first, -1))
    return after == len(spans) or spans[after][1] > block.last


# MXNet's storage planner, specified in plain Python (the pass MXPlanMemory of MXNet 1.9.1).
#
# Going through the nodes in execution order, an entry takes the free chunk whose size is nearest to its own within the
# match range, or a new one; an operator that may work in place takes over the chunk of an input that has no other
# reader. An executor plans the whole graph so. A CachedOp (`echo.ir.training_graph.Runner`) plans the forward nodes,
# then the backward nodes with all forward entries where they are. The total is the sum of all chunks; where a CachedOp
# allocates dynamically, the most bytes of chunks alive at once, or what the device's pool
# (`echo.ir.training_graph.MemoryPool`) then holds. Chunks in which nothing is ever touched (`TrainingNode.untouched`),
# which MXNet never allocates, do not count. In place of a match range, `StorageStrategy.ASSIGNED` and
# `StorageStrategy.PEAK` stand for echo's own assignment of the same blocks (`echo.estimators.mxnet_storage`), less
# those that are never touched. ``echo/native/planner/storage.cc`` does the same faster and is tested against this.

_NONE, _EXTERNAL = -1, -2
_BYTES_AN_ELEMENT = 4  # MXNet counts so for every type


@dataclass(frozen=True)
class Storage:
    """``chunk[e]``: the chunk of entry e (negative: not the planner's); ``chunk_bytes``: the size of each chunk.

    ``inplace[e]``: the input whose memory entry e takes over, or -1. ``total``: the bytes that are needed.
    """

    chunk: tuple[int, ...]
    chunk_bytes: tuple[int, ...]
    inplace: tuple[int, ...]
    total: int


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
        outputs = [(node, index) for node in training.nodes for index in range(len(node.outputs))]
        self.chunk = [_EXTERNAL if index in node.external else _NONE for node, index in outputs]
        self.inplace = [-1] * len(outputs)
        self.readers = [0] * len(outputs)
        self.stashed: set[int] = set()  # entries that the nodes now planned find where they are
        self.pending: list[int] = []  # reads of each chunk that are still to come
        self.bytes: list[int] = []
        self.free = _FreeChunks()
        for _, node in training.operators():
            for position, entry in enumerate(node.inputs):
                # a CachedOp counts what is read for its shape alone, and never gives it back
                if position not in node.shape_only or training.runner != Runner.EXECUTOR:
                    self.readers[training.entry_id(entry)] += 1
        for entry in training.outputs:
            self.readers[training.entry_id(entry)] += 1

    def begin_backward(self) -> None:
        self.free = _FreeChunks()
        nodes = self.training.nodes
        ends = self.training.first_entry
        self.stashed = {e for i, node in enumerate(nodes) if node.forward for e in range(ends[i], ends[i + 1])}

    def share_inputs(self, node: TrainingNode, first: int) -> None:
        taken: set[int] = set()
        ignores_all = bool(node.inputs) and len(node.shape_only) == len(node.inputs)
        for position, output, may_be_identity in node.inplace:
            source, target = self.training.entry_id(node.inputs[position]), first + output
            old, new = self.training.type_of(node.inputs[position]), node.outputs[output]
            chunk = _EXTERNAL if source in self.stashed else self.chunk[source]
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
        unplaced = [i for i in range(len(node.outputs)) if self.chunk[first + i] == _NONE]
        for index in reversed(sorted(unplaced, key=lambda i: node.outputs[i].elements)):
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
            source = self.training.entry_id(entry)
            chunk = self.chunk[source]
            if position in node.shape_only or chunk < 0 or source in self.stashed:
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
    allocator = _Allocator(training, max(0, match_range))  # 0: every block is a chunk of its own
    forward = True
    for number, node in training.operators():
        if forward and not node.forward and training.runner != Runner.EXECUTOR:
            forward = False
            allocator.begin_backward()
        first = training.first_entry[number]
        allocator.share_inputs(node, first)
        allocator.allocate(node, first)
        allocator.release(node, first)
    chunk, sizes = tuple(allocator.chunk), tuple(allocator.bytes)
    if match_range == StorageStrategy.ASSIGNED:
        chunk, sizes = _assigned(training, chunk, sizes)
    alive = match_range == StorageStrategy.PEAK or (training.runner == Runner.DYNAMIC and match_range >= 0)
    held = blocks_of(training, chunk, sizes)
    if not alive:
        total = sum(block.bytes for block in held.values())
    elif training.pool is None or match_range == StorageStrategy.PEAK:
        total = _most_alive(training, held.values())
    else:
        total = _pooled(training, training.pool, held.values())
    return Storage(chunk, sizes, tuple(allocator.inplace), total)


def _assigned(
    training: TrainingGraph, chunk: Sequence[int], sizes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the blocks in the chunks of echo's own assignment; a CachedOp's forward and backward nodes share none."""
    blocks = blocks_of(training, chunk, sizes)
    moved: dict[int, int] = {}
    all_sizes: list[int] = []
    for numbers in _planned_together(training, blocks):
        chunk_of, new_sizes = assign_chunks([blocks[number] for number in numbers])
        moved.update({number: len(all_sizes) + new for number, new in zip(numbers, chunk_of)})
        all_sizes += new_sizes
    placed = [moved.get(number, min(number, _NONE)) for number in chunk]
    for entry in _untouched(training):
        placed[entry] = _NONE
    return tuple(placed), tuple(all_sizes)


def _untouched(training: TrainingGraph) -> set[int]:
    return {training.first_entry[number] + i for number, node in enumerate(training.nodes) for i in node.untouched}


def _planned_together(training: TrainingGraph, blocks: Mapping[int, Block]) -> list[list[int]]:
    forward = [number for number, block in sorted(blocks.items()) if training.nodes[block.first].forward]
    if training.runner == Runner.EXECUTOR:
        return [sorted(blocks)]
    return [forward, [number for number in sorted(blocks) if number not in set(forward)]]


def blocks_of(training: TrainingGraph, chunk: Sequence[int], sizes: Sequence[int]) -> dict[int, Block]:
    """Each chunk with its lifetime: from its first write to the last use of what it holds.

    Outputs that are never touched (`TrainingNode.untouched`) do not count.
    """
    untouched = _untouched(training)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, node in training.operators():
        written = range(training.first_entry[number], training.first_entry[number + 1])
        for entry in (*written, *map(training.entry_id, node.inputs)):
            if chunk[entry] >= 0 and entry not in untouched:
                first.setdefault(chunk[entry], number)
                last[chunk[entry]] = number
    for entry in map(training.entry_id, training.outputs):
        if chunk[entry] >= 0:
            last[chunk[entry]] = len(training.nodes)
    return {number: Block(sizes[number], first[number], last[number]) for number in first}


def _pooled(training: TrainingGraph, pool: MemoryPool, blocks: Iterable[Block]) -> int:
    """Returns the bytes that the pool holds after a step: of each size, as many blocks as were alive at once."""
    place = {number: index for index, (number, _) in enumerate(training.operators())}
    of_size: dict[int, list[Block]] = defaultdict(list)
    for block in blocks:
        last = min(place.get(block.last, len(place)) + pool.reuse_delay, len(place))
        of_size[pool.handed_out(block.bytes)].append(Block(1, place[block.first], last))
    return sum(size * _most_alive(training, alike) for size, alike in of_size.items())


def _most_alive(training: TrainingGraph, blocks: Iterable[Block]) -> int:
    changes = [0] * (len(training.nodes) + 2)
    for block in blocks:
        changes[block.first] += block.bytes
        changes[block.last + 1] -= block.bytes
    return max(itertools.accumulate(changes), default=0)
