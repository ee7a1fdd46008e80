"""Everything dropped, and as much kept as a budget has room for: schedules of long graphs in some passes.

Where a budget is far below what a graph takes, it is a long way from nothing. This goes the other way: the forward
pass is cut into segments (`echo.policies.sublinear`), and all of a segment runs again when the backward pass gets to
it. Of that, the values are kept that save the most time for each byte (``echo/native/planner/keep.cc``). A handful of
shapes of segments are tried.
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

_AIMS = 4  # budgets aimed at, where the storage that is planned needs more than the scheduler counts
_LOWER = 0.9995  # lest it comes down to the budget without ever getting there
_PASSES = 3  # to compare schedules; more bring less than a hundredth
_ALL_PASSES = 6
_TRIED = 100_000  # nodes of all schedules that are compared; some are in any case
_WORSE = 4  # times as many segments as take the fewest bytes, up to which more are tried


class _Shape(NamedTuple):
    """Segments of equal length, and behind those some more, each shorter by a factor than the one before.

    When the backward pass begins, all that is kept is there, and little room for a segment; later there is more. With
    ``late``, what gradients read runs once more, just before they do.
    """

    equal: int
    shrinking: int
    factor: float
    late: bool

    @property
    def shares(self) -> list[float]:
        return [1.0] * self.equal + [self.factor**-index for index in range(1, self.shrinking + 1)]


_FIRST = _Shape(1, 5, 1.6, False)
# Tried in turn, each from the best so far, again and again as long as that brings something.
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
    """A schedule that drops everything, and what was kept of that."""

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
        """By exact bytes, which are more than what the scheduler counts: it aims lower until they fit."""
        best = self._best(budget)
        aim, splits = budget, best.splits
        for _ in range(_AIMS):
            splits = self._scheduler.keep(best.start, aim, _ALL_PASSES)[0]
            found = self._problem.value(splits).bytes
            if found <= budget or best.value.bytes > budget:
                break
            aim = int(_LOWER * aim * budget / found)
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
            other = change(shape)
            if other not in tried:
                if len(tried) == most:
                    break
                tried[other] = self._kept(self._dropped(other), budget)
            better = tried[other].rank(budget) < tried[shape].rank(budget)
            shape, unchanged = (other, 0) if better else (shape, unchanged + 1)
            if unchanged == len(_CHANGES):
                break
        return tried[shape]

    def _longest(self, budget: int) -> _Shape:
        """The longest segments of which all dropped fits the budget, else those that take the fewest bytes."""
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
        low = equal // 2  # does not fit, or is none
        while equal - low > 1:
            middle = (low + equal) // 2
            low, equal = (low, middle) if fits(middle) else (middle, equal)
        return _FIRST._replace(equal=equal)

    def _kept(self, start: Splits, budget: int) -> _Kept:
        splits, value = self._scheduler.keep(start, budget, _PASSES)
        return _Kept(start, splits, value)

    def _dropped(self, shape: _Shape) -> Splits:
        """Each node in a segment runs again when the first gradient of the segment is computed."""
        segments = self._cutter.splits(shape.shares, 1)
        if not shape.late:
            return segments
        first = dict(zip(self._cutter.nodes, self._cutter.first_backward))
        return {node: tuple(sorted({*slots, first[node]} - {0})) for node, slots in segments.items()}
