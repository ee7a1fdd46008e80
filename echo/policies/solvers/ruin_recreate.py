"""Schedules by ruin and recreate, and a first schedule that keeps values greedily."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Callable, NamedTuple, Sequence

import numpy as np

from echo.errors import NativeError
from echo.estimators.scheduler import CHUNKS, LIVE, Scheduler
from echo.estimators.storage_planner import Evaluation, RecomputeMask
from echo.ir.schedule import RecomputeSchedule, Replayed
from echo.policies.problem import Problem
from echo.policies.sublinear import Cutter
from echo.system.terminal import size_text

# Schedules by the native scheduler: nodes may be recomputed any number of times, each just before it is read.
#
# With a budget, the fastest schedule that fits; without one, the smallest within the bound on time. The scheduler
# counts a lower bound on the bytes of any storage assignment (`echo.estimators.scheduler`), which echo's own
# assignment nearly always reaches; schedules are compared by their exact bytes.

_MOST_SIMULATIONS = 40_000  # in one attempt: twice as many gain less than a tenth of a point on small graphs
_AIMS = 4  # budgets aimed at, where the planned storage needs more than the scheduler counts


def can_fit(problem: Problem) -> bool:
    """Whether the scheduler can plan this graph: not in a CachedOp, which plans each pass by itself."""
    return problem.may_split and not problem.must_recompute and bool(problem.candidates)


@dataclass(frozen=True)
class RuinRecreate:
    """Greedy drops at the peak, ruined and recreated; see ``echo/native/planner/ruin_recreate.cc``.

    ``starts`` are schedules to begin with, ``share`` is the part of a problem's effort for each.
    """

    starts: tuple[RecomputeSchedule, ...] = ({},)
    share: float = 0.5
    name: str = "fit"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        if not can_fit(problem):
            return {}
        try:
            attempts = _Attempts(problem, self.share)
        except NativeError:
            return {}
        if problem.max_bytes is None:
            attempts.least(self.starts)
        else:
            for start in self.starts:
                attempts.within(problem.max_bytes, start)
        return attempts.best


class _Attempts:
    """The best schedule of some attempts, by its exact bytes and seconds."""

    def __init__(self, problem: Problem, share: float) -> None:
        self.problem = problem
        self.scheduler = scheduler_of(problem)
        simulations = problem.effort // len(problem.training.nodes)
        self.effort = max(20, min(_MOST_SIMULATIONS, int(share * simulations)))
        self.best: RecomputeSchedule = {}
        self.best_value = problem.value(self.best)

    def consider(self, schedule: RecomputeSchedule) -> Evaluation:
        value = self.problem.value(schedule)
        if self.problem.cost(value) < self.problem.cost(self.best_value):
            self.best, self.best_value = schedule, value
        return value

    def within(self, budget: int, start: RecomputeSchedule) -> None:
        """Looks for the fastest schedule within a budget; aims lower where storage needs more than was counted."""
        counted, needed = self.scheduler.simulate(start).bytes, self.consider(start).bytes
        aim, fits, beyond = int(budget * min(1.0, counted / max(needed, 1))) if start else budget, 0, budget + 1
        for tried in range(_AIMS):
            self.problem.progress(f"schedules of {size_text(aim)}")
            schedule, replayed = self.scheduler.fit(self.problem.candidates, aim, self.effort, start)
            value = self.consider(schedule)
            if replayed.bytes > aim or (value.bytes <= budget and not tried):
                break
            if value.bytes <= budget:
                fits = aim
            else:
                beyond = aim
            aim = (fits + beyond) // 2 if fits else int(aim * budget / value.bytes)

    def least(self, starts: Sequence[RecomputeSchedule]) -> None:
        """Looks for the smallest schedule within the bound on time, from each start in a thread of its own."""
        self.problem.progress("schedules")
        late = self.problem.max_seconds
        bound = 1e300 if late is None else late
        schedulers = [self.scheduler, *(scheduler_of(self.problem) for _ in starts[1:])]

        def search(scheduler: Scheduler, start: RecomputeSchedule) -> RecomputeSchedule:
            return scheduler.least(self.problem.candidates, bound, self.effort, start, self.problem.price)[0]

        with ThreadPoolExecutor(len(schedulers)) as threads:
            schedules = list(threads.map(search, schedulers, starts))
        for schedule in schedules:
            self.consider(schedule)


def scheduler_of(problem: Problem) -> Scheduler:
    """A scheduler that counts bytes as the storage of this problem does.

    Raises:
        NativeError: the native library is not there.
    """
    measure = CHUNKS if problem.assigns else LIVE
    scheduler = Scheduler(problem.training, problem.costs.seconds, measure, _recomputable(problem))
    scheduler.end_in(problem.deadline.left)
    return scheduler


def _recomputable(problem: Problem) -> RecomputeMask:
    """The choice of every entry of the candidates."""
    mask = np.zeros(problem.evaluator.entries, np.uint8)
    for node in problem.candidates:
        mask[problem.entry_ids(node)] = 1
    return mask


# Drops everything, then keeps as much as a budget has room for: schedules of long graphs in some passes.
#
# Where a budget is far below the bytes of a graph, a search that starts from nothing recomputed has a long way. This
# one starts from the other end: the forward pass is cut into segments (`echo.policies.sublinear`), and all nodes of a
# segment are recomputed when the backward pass gets to it. Of their values, those are kept that save the most time for
# each byte (``echo/native/planner/greedy_keep.cc``). A handful of shapes of segments are tried.

_LOWER = 0.9995  # so that lower aims reach the budget, and do not only approach it
_PASSES = 3  # to compare schedules; more gain less than a hundredth
_ALL_PASSES = 6
_TRIED = 100_000  # nodes of all schedules that are compared; a few schedules are compared in any case
_WORSE = 4  # numbers of segments are tried up to this multiple of the one with the fewest bytes


class _Segmentation(NamedTuple):
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


_FIRST = _Segmentation(1, 5, 1.6, False)
# Tried in turn, each from the best shape so far, again and again until none of them is better.
_CHANGES: tuple[Callable[[_Segmentation], _Segmentation], ...] = (
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
class _Filled:
    """The drop-everything schedule ``start``, and the schedule and its value after greedily keeping values."""

    start: RecomputeSchedule
    schedule: RecomputeSchedule
    value: Replayed

    def rank(self, budget: int) -> tuple[int, float]:
        return (max(0, self.value.bytes - budget), self.value.seconds)


@dataclass(frozen=True)
class GreedyKeep:
    """The fastest of such schedules within ``max_bytes``; the smallest where none fits."""

    name: str = "keep"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        if not can_fit(problem) or problem.max_bytes is None:
            return {}
        try:
            return KeepSearch(problem).run(problem.max_bytes)
        except NativeError:
            return {}


class KeepSearch:
    """Searches for such schedules of one problem, for any budget; ``quick``: the longest segments will do.

    Raises:
        NativeError: the native library is not there.
    """

    def __init__(self, problem: Problem, quick: bool = False) -> None:
        self._problem, self._scheduler, self._quick = problem, scheduler_of(problem), quick
        self._cutter = Cutter(problem)
        self._schedules: dict[_Segmentation, RecomputeSchedule] = {}  # of each shape, for all budgets
        self._bytes: dict[_Segmentation, int] = {}

    @property
    def _is_over(self) -> bool:
        return self._problem.deadline.is_over

    def run(self, budget: int) -> RecomputeSchedule:
        """The best schedule, whose exact bytes fit: these exceed the scheduler's count, so it aims below the budget."""
        best = self._best(budget)
        aim, schedule = budget, best.schedule
        for _ in range(_AIMS):
            schedule = self._scheduler.keep(best.start, aim, _ALL_PASSES)[0]
            needed = self._problem.value(schedule).bytes
            if needed <= budget or best.value.bytes > budget or self._is_over:
                break
            aim = int(_LOWER * aim * budget / needed)
        return schedule

    def _best(self, budget: int) -> _Filled:
        """The best of the shapes around the longest segments that fit."""
        longest = self._longest(budget)
        if self._quick or self._is_over:
            return self._filled(self._dropped(longest), budget)
        tried = {}
        for more in (0, 1):
            for late in (False, True):
                shape = longest._replace(equal=longest.equal + more, late=late)
                tried[shape] = self._filled(self._dropped(shape), budget)
        shape = min(tried, key=lambda shape: tried[shape].rank(budget))
        most = max(_TRIED // len(self._problem.training.nodes), len(tried) + len(_CHANGES) - 3)
        unchanged = 0
        for change in itertools.cycle(_CHANGES):
            changed = change(shape)
            if changed not in tried:
                if len(tried) == most or self._is_over:
                    break
                tried[changed] = self._filled(self._dropped(changed), budget)
            better = tried[changed].rank(budget) < tried[shape].rank(budget)
            shape, unchanged = (changed, 0) if better else (shape, unchanged + 1)
            if unchanged == len(_CHANGES):
                break
        return tried[shape]

    def _longest(self, budget: int) -> _Segmentation:
        """The longest segments with which everything dropped fits the budget, else those with the fewest bytes."""
        tried: dict[int, int] = {}

        def fits(equal: int) -> bool:
            shape = _FIRST._replace(equal=equal)
            if shape not in self._bytes:
                self._bytes[shape] = self._scheduler.simulate(self._dropped(shape)).bytes
            tried[equal] = self._bytes[shape]
            return tried[equal] <= budget

        equal = 1
        while not fits(equal):
            equal *= 2
            least = min(tried, key=lambda number: (tried[number], number))
            if equal > min(len(self._cutter.nodes), _WORSE * least) or self._is_over:
                return _FIRST._replace(equal=least)
        low = equal // 2  # does not fit, or is 0
        while equal - low > 1 and not self._is_over:
            middle = (low + equal) // 2
            low, equal = (low, middle) if fits(middle) else (middle, equal)
        return _FIRST._replace(equal=equal)

    def _filled(self, start: RecomputeSchedule, budget: int) -> _Filled:
        schedule, value = self._scheduler.keep(start, budget, _PASSES)
        return _Filled(start, schedule, value)

    def _dropped(self, shape: _Segmentation) -> RecomputeSchedule:
        if shape not in self._schedules:
            self._schedules[shape] = self._schedule_of(shape)
        return self._schedules[shape]

    def _schedule_of(self, shape: _Segmentation) -> RecomputeSchedule:
        """Returns the schedule of a shape: nodes are recomputed before the first gradient of their segment."""
        segments = self._cutter.schedule(shape.shares, 1)
        if not shape.late:
            return segments
        first = dict(zip(self._cutter.nodes, self._cutter.first_backward))
        return {node: tuple(sorted({*positions, first[node]} - {0})) for node, positions in segments.items()}
