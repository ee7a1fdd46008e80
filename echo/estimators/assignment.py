"""echo's own storage assignment: which blocks of memory share a chunk.

MXNet's greedy planner ends far above the bytes that are alive at once. Blocks with known lifetimes are intervals, and
giving them chunks is interval colouring with sizes (as in Pisarchyk and Lee, 2020): the largest block first, each into
the largest chunk that is free for its lifetime, or each into the smallest, whichever needs fewer bytes. It costs no
time and changes no bits. This is the specification of ``echo/native/storage/assign.h``.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Sequence


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


def check(blocks: Sequence[Block], chunk_of: Sequence[int], sizes: Sequence[int]) -> None:
    """Checks the rules of an assignment, without knowing how it was made.

    Raises:
        ValueError: two blocks that are alive together share a chunk, or a block is larger than its chunk.
    """
    members: dict[int, list[Block]] = {}
    for block, chunk in zip(blocks, chunk_of):
        members.setdefault(chunk, []).append(block)
    for chunk, sharing in members.items():
        sharing.sort(key=lambda block: block.first)
        for before, after in zip(sharing, sharing[1:]):
            if after.first <= before.last:
                raise ValueError(f"chunk {chunk}: {before} and {after} are alive together")
        if max(block.bytes for block in sharing) > sizes[chunk]:
            raise ValueError(f"chunk {chunk} has {sizes[chunk]} bytes, too few for its blocks")
