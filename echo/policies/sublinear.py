"""Checkpoints where few bytes cross (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).

The forward pass is cut into segments at positions that few bytes cross; those bytes are stashed, the rest of a segment
is recomputed when the backward pass gets to it. In a segment the same is done again, as deep as it pays: its inner
nodes then run once more for each level. Segments hold about as many bytes each; how many is searched over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import Sequence

from echo.ir.graph import Entry
from echo.ir.schedule import Splits
from echo.policies.problem import Problem

_DEEPEST = 4  # levels of segments in segments
_MORE = 1.3  # from one number of segments to the next
_VISITS = 40  # nodes that one schedule costs to plan and to evaluate, in units of a problem's effort


@dataclass(frozen=True)
class Sublinear:
    """The best of such schedules, by number of segments and depth; within the limits where one of them is."""

    name: str = "sublinear"

    def choose(self, problem: Problem) -> Splits:
        best: Splits = {}
        best_rank = problem.rank(problem.value(best))
        left = max(10, problem.effort // (_VISITS * max(1, len(problem.training.nodes))))
        cutter = Cutter(problem)
        deepest = _DEEPEST if problem.may_split else 1
        for depth in range(1, deepest + 1):
            for count in _counts(len(cutter.nodes), depth):
                if left == 0:
                    return best
                left -= 1
                splits = cutter.splits([1.0] * count, depth)
                rank = problem.rank(problem.value(splits))
                if rank < best_rank:
                    best, best_rank = splits, rank
        return best


def _counts(nodes: int, depth: int) -> list[int]:
    """Numbers of segments at each level, up to about as many as there are nodes in the last."""
    found, count = [], 1.0 if depth == 1 else 2.0
    while count ** depth <= max(nodes, 1):
        found.append(int(count))
        count = max(count * _MORE, int(count) + 1)
    return found


class Cutter:
    """Segments are ranges of candidates in the order of the forward pass.

    ``first_backward`` has for each candidate, in that order, the first backward node that reads it, 0 for none.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        training = problem.training
        self.nodes = sorted(problem.candidates)
        entries = [[Entry(e.node, e.index) for e in problem.candidates[node]] for node in self.nodes]
        self.size = [sum(training.type_of(entry).bytes for entry in own) for own in entries]
        self.begin = list(accumulate(self.size, initial=0))  # bytes before each candidate
        self.last_reader = self._last_readers()
        readers = training.backward_readers
        first = [min([min(readers[entry]) for entry in own if entry in readers], default=0) for own in entries]
        self.first_backward: Sequence[int] = first

    def _last_readers(self) -> list[int]:
        """By position of a candidate: that of the last candidate that reads it."""
        position_of = {node: position for position, node in enumerate(self.nodes)}
        last = list(range(len(self.nodes)))
        for position, node in enumerate(self.nodes):
            for entry in self.problem.training.nodes[node].inputs:
                if entry.node in position_of:
                    last[position_of[entry.node]] = position
        return last

    def splits(self, shares: Sequence[float], depth: int) -> Splits:
        """The schedule of segments that have these shares of the bytes, at each of ``depth`` levels."""
        found: dict[int, set[int]] = defaultdict(set)
        work = [(0, len(self.nodes), list(range(len(self.nodes))), depth)]
        while work:
            begin, end, dropped, levels = work.pop()
            for left, right, inner in self._segments(begin, end, dropped, shares):
                reads = [self.first_backward[node] for node in inner if self.first_backward[node]]
                if not reads:
                    continue  # no gradient needs what is made here
                start = min(reads)
                for node in inner:
                    found[self.nodes[node]].add(start)
                if levels > 1 and right - left > 1:
                    work.append((left, right, inner, levels - 1))
        if not self.problem.may_split:
            return self.problem.splits(found)
        return {node: tuple(sorted(slots)) for node, slots in sorted(found.items())}

    def _segments(
        self, begin: int, end: int, dropped: Sequence[int], shares: Sequence[float]
    ) -> list[tuple[int, int, list[int]]]:
        """Ranges, and those of the ``dropped`` candidates in each that stay dropped: not read behind the range."""
        cuts = [begin, *self._cuts(begin, end, shares), end]
        found, at = [], 0
        for left, right in zip(cuts, cuts[1:]):
            inner = []
            while at < len(dropped) and dropped[at] < right:
                if self.last_reader[dropped[at]] < right:
                    inner.append(dropped[at])
                at += 1
            found.append((left, right, inner))
        return found

    def _cuts(self, begin: int, end: int, shares: Sequence[float]) -> list[int]:
        """Positions near to shares of the bytes, each where the fewest bytes cross for half a share around."""
        crossing = self._crossing(begin, end)
        unit = (self.begin[end] - self.begin[begin]) / sum(shares)
        cuts: set[int] = set()
        aim = float(self.begin[begin])
        for before, behind in zip(shares, shares[1:]):
            aim += before * unit
            low = max(begin + 1, bisect_left(self.begin, aim - before * unit / 2, begin, end))
            high = min(end - 1, bisect_left(self.begin, aim + behind * unit / 2, begin, end))
            if low <= high:
                offer = [(crossing[cut - begin], abs(self.begin[cut] - aim), cut) for cut in range(low, high + 1)]
                cuts.add(min(offer)[2])
        return sorted(cuts)

    def _crossing(self, begin: int, end: int) -> list[int]:
        """Bytes made in a range before each position of it that are read at that position or behind."""
        change = [0] * (end - begin + 2)
        for position in range(begin, end):
            last = min(self.last_reader[position], end)
            if last > position:
                change[position + 1 - begin] += self.size[position]
                change[last + 1 - begin] -= self.size[position]
        return list(accumulate(change))
