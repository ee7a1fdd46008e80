"""Checkpoints where few bytes cross (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).

The forward pass is cut into segments at positions that few bytes cross; those bytes are stashed, the rest of a segment
is recomputed when the backward pass gets to it. Segments are cut into segments again, as deep as it pays: their inner
nodes then run once more for each level. Segments hold about equally many bytes; the policy searches their number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import Sequence

from echo.ir.graph import Entry
from echo.ir.schedule import RecomputeSchedule
from echo.policies.problem import Problem

_DEEPEST = 4  # levels of segments in segments
_MORE = 1.3  # the ratio of one number of segments to the one before
_VISITS = 40  # units of a problem's effort for each node, to plan and evaluate one schedule


@dataclass(frozen=True)
class Sublinear:
    """The best of such schedules over numbers of segments and depths; within the limits where one of them is."""

    name: str = "sublinear"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        best: RecomputeSchedule = {}
        best_rank = problem.rank(problem.value(best))
        left = max(10, problem.effort // (_VISITS * max(1, len(problem.training.nodes))))
        cutter = Cutter(problem)
        deepest = _DEEPEST if problem.may_split else 1
        for depth in range(1, deepest + 1):
            for count in _counts(len(cutter.nodes), depth):
                if left == 0:
                    return best
                left -= 1
                schedule = cutter.schedule([1.0] * count, depth)
                rank = problem.rank(problem.value(schedule))
                if rank < best_rank:
                    best, best_rank = schedule, rank
        return best


def _counts(nodes: int, depth: int) -> list[int]:
    """The numbers of segments of a level to try, until the last level has about as many segments as there are nodes."""
    counts, count = [], 1.0 if depth == 1 else 2.0
    while count**depth <= max(nodes, 1):
        counts.append(int(count))
        count = max(count * _MORE, int(count) + 1)
    return counts


class Cutter:
    """Segments are ranges of candidates in the order of the forward pass.

    ``first_backward`` has for each candidate, in that order, the first backward node that reads it, 0 for none.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        training = problem.training
        self.nodes = sorted(problem.candidates)
        entries = [[Entry(e.node, e.index) for e in problem.candidates[node]] for node in self.nodes]
        self.size = [sum(training.type_of(entry).bytes for entry in node_entries) for node_entries in entries]
        self.begin = list(accumulate(self.size, initial=0))  # bytes before each candidate
        self.last_reader = self._last_readers()
        readers = training.backward_readers
        read = [[readers[entry] for entry in node_entries if entry in readers] for node_entries in entries]
        self.first_backward: Sequence[int] = [min(map(min, entry_readers), default=0) for entry_readers in read]

    def _last_readers(self) -> list[int]:
        """By position of a candidate: the position of the last candidate that reads it."""
        position_of = {node: position for position, node in enumerate(self.nodes)}
        last = list(range(len(self.nodes)))
        for position, node in enumerate(self.nodes):
            for entry in self.problem.training.nodes[node].inputs:
                if entry.node in position_of:
                    last[position_of[entry.node]] = position
        return last

    def schedule(self, shares: Sequence[float], depth: int) -> RecomputeSchedule:
        """The schedule of segments that have these shares of the bytes, at each of ``depth`` levels."""
        positions_of: dict[int, set[int]] = defaultdict(set)
        work = [(0, len(self.nodes), list(range(len(self.nodes))), depth)]
        while work:
            begin, end, dropped, levels = work.pop()
            for left, right, inner in self._segments(begin, end, dropped, shares):
                reads = [self.first_backward[node] for node in inner if self.first_backward[node]]
                if not reads:
                    continue  # no gradient reads a feature map of this segment
                start = min(reads)
                for node in inner:
                    positions_of[self.nodes[node]].add(start)
                if levels > 1 and right - left > 1:
                    work.append((left, right, inner, levels - 1))
        if not self.problem.may_split:
            return self.problem.splits(positions_of)
        return {node: tuple(sorted(positions)) for node, positions in sorted(positions_of.items())}

    def _segments(
        self, begin: int, end: int, dropped: Sequence[int], shares: Sequence[float]
    ) -> list[tuple[int, int, list[int]]]:
        """Ranges, each with its ``dropped`` candidates that stay dropped, since nothing after the range reads them."""
        cuts = [begin, *self._cuts(begin, end, shares), end]
        segments, at = [], 0
        for left, right in zip(cuts, cuts[1:]):
            inner = []
            while at < len(dropped) and dropped[at] < right:
                if self.last_reader[dropped[at]] < right:
                    inner.append(dropped[at])
                at += 1
            segments.append((left, right, inner))
        return segments

    def _cuts(self, begin: int, end: int, shares: Sequence[float]) -> list[int]:
        """Cuts near to these shares of the bytes, each where the fewest bytes cross within half a share around."""
        crossing = self._crossing(begin, end)
        unit = (self.begin[end] - self.begin[begin]) / sum(shares)
        cuts: set[int] = set()
        aim = float(self.begin[begin])
        for share, next_share in zip(shares, shares[1:]):
            aim += share * unit
            low = max(begin + 1, bisect_left(self.begin, aim - share * unit / 2, begin, end))
            high = min(end - 1, bisect_left(self.begin, aim + next_share * unit / 2, begin, end))
            if low <= high:
                offer = [(crossing[cut - begin], abs(self.begin[cut] - aim), cut) for cut in range(low, high + 1)]
                cuts.add(min(offer)[2])
        return sorted(cuts)

    def _crossing(self, begin: int, end: int) -> list[int]:
        """For each position of a range: bytes computed in the range before it, and read at it or after it."""
        change = [0] * (end - begin + 2)
        for position in range(begin, end):
            last = min(self.last_reader[position], end)
            if last > position:
                change[position + 1 - begin] += self.size[position]
                change[last + 1 - begin] -= self.size[position]
        return list(accumulate(change))
