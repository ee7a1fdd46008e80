"""Drops everything, then keeps as much as a budget has room for: schedules of long graphs in some passes.

Where a budget is far below the bytes of a graph, a search that starts from nothing recomputed has a long way. This one
starts from the other end: the forward pass is cut into segments (`echo.policies.sublinear`), and all nodes of a segment
run again when the backward pass gets to it. Of their values, those are kept that save the most time for each byte
(``echo/native/planner/keep.cc``). A handful of shapes of segments are tried.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Callable, NamedTuple

from echo.errors import NativeError
from echo.estimators.scheduler import Scheduler
from echo.ir.schedule import Replayed, Splits
from echo.policies.problem import Problem
from echo.policies.solvers.ruin_recreate import can_fit, scheduler_of
from echo.policies.sublinear import Cutter

_AIMS = 4  # budgets aimed at, where the planned storage needs more than the scheduler counts
_LOWER = 0.9995  # so that lower aims reach the budget, and do not only approach it
_PASSES = 3  # to compare schedules; more gain less than a hundredth
_ALL_PASSES = 6
_TRIED = 100_000  # nodes of all schedules that are compared; a few schedules are compared in any case
_WORSE = 4  # numbers of segments are tried up to this multiple of the one with the fewest bytes


class _Shape(NamedTuple):
    """Segments of equal length, and after those some more, each shorter by a factor than the one before.

    When the backward pass begins, all kept values are in memory, with little room for a segment; later there is more.
    With ``late``, nodes that gradients read run once more, just before these gradients.
    """

    equal: int
    shrinking: int
    factor: float
    late: bool

    @property
    def shares(self) -> list[float]:
        return [1.0] * self.equal + [self.factor**-index for index in range(1, self.shrinking + 1)]


_FIRST = _Shape(1, 5, 1.6, False)
# Tried in turn, each from the best shape so far, again and again until none of them is better.
_CHANGES: tuple[Callable[[_Shape], _Shape], ...] = (
    lambda shape: shape._replace(equal=math.ceil(shape.equal * 1.25) + 1),
    lambda shape: shape._replace(factor=2 * shape.factor - 0.8),
    lambda shape: shape._replace(factor=0.5 * shape.factor + 0.5),
    lambda shape: shape._replace(shrinking=shape.shrinking + 3),
    lambda shape: shape._replace(shrinking=max(0, shape.shrinking - 2)),
    lambda shape: shape._replace(equal=shape.equal + 1),
    lambda shape: shape._replace(equal=max(1, shape.equal - 1)),
    lambda shape: shape._replace(late=not shape.late),
)


@dataclass(frozen=True)
class _Kept:
    """A schedule ``start`` that drops everything, and the schedule and value after values were kept."""

    start: Splits
    splits: Splits
    value: Replayed

    def rank(self, budget: int) -> tuple[int, float]:
        return (max(0, self.value.bytes - budget), self.value.seconds)


@dataclass(frozen=True)
class GreedyKeep:
    """The fastest of such schedules within ``max_bytes``; the smallest where none fits."""

    name: str = "keep"

    def choose(self, problem: Problem) -> Splits:
        if not can_fit(problem) or problem.max_bytes is None:
            return {}
        try:
            return _Search(problem, scheduler_of(problem)).run(problem.max_bytes)
        except NativeError:
            return {}


class _Search:
    def __init__(self, problem: Problem, scheduler: Scheduler) -> None:
        self._problem, self._scheduler = problem, scheduler
        self._cutter = Cutter(problem)

    def run(self, budget: int) -> Splits:
        """The best schedule, whose exact bytes fit: these exceed the scheduler's count, so it aims below the budget."""
        best = self._best(budget)
        aim, splits = budget, best.splits
        for _ in range(_AIMS):
            splits = self._scheduler.keep(best.start, aim, _ALL_PASSES)[0]
            needed = self._problem.value(splits).bytes
            if needed <= budget or best.value.bytes > budget:
                break
            aim = int(_LOWER * aim * budget / needed)
        return splits

    def _best(self, budget: int) -> _Kept:
        """The best of the shapes around the longest segments that fit."""
        longest = self._longest(budget)
        tried = {}
        for more in (0, 1):
            for late in (False, True):
                shape = longest._replace(equal=longest.equal + more, late=late)
                tried[shape] = self._kept(self._dropped(shape), budget)
        shape = min(tried, key=lambda shape: tried[shape].rank(budget))
        most = max(_TRIED // len(self._problem.training.nodes), len(tried) + len(_CHANGES) - 3)
        unchanged = 0
        for change in itertools.cycle(_CHANGES):
            changed = change(shape)
            if changed not in tried:
                if len(tried) == most:
                    break
                tried[changed] = self._kept(self._dropped(changed), budget)
            better = tried[changed].rank(budget) < tried[shape].rank(budget)
            shape, unchanged = (changed, 0) if better else (shape, unchanged + 1)
            if unchanged == len(_CHANGES):
                break
        return tried[shape]

    def _longest(self, budget: int) -> _Shape:
        """The longest segments with which everything dropped fits the budget, else those with the fewest bytes."""
        tried: dict[int, int] = {}

        def fits(equal: int) -> bool:
            start = self._dropped(_FIRST._replace(equal=equal))
            tried[equal] = self._scheduler.simulate(start).bytes
            return tried[equal] <= budget

        equal = 1
        while not fits(equal):
            equal *= 2
            least = min(tried, key=lambda number: (tried[number], number))
            if equal > min(len(self._cutter.nodes), _WORSE * least):
                return _FIRST._replace(equal=least)
        low = equal // 2  # does not fit, or is 0
        while equal - low > 1:
            middle = (low + equal) // 2
            low, equal = (low, middle) if fits(middle) else (middle, equal)
        return _FIRST._replace(equal=equal)

    def _kept(self, start: Splits, budget: int) -> _Kept:
        splits, value = self._scheduler.keep(start, budget, _PASSES)
        return _Kept(start, splits, value)

    def _dropped(self, shape: _Shape) -> Splits:
        """Returns the schedule of a shape: nodes run again when the first gradient of their segment is computed."""
        segments = self._cutter.splits(shape.shares, 1)
        if not shape.late:
            return segments
        first = dict(zip(self._cutter.nodes, self._cutter.first_backward))
        return {node: tuple(sorted({*slots, first[node]} - {0})) for node, slots in segments.items()}
