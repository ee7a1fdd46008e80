"""Schedules by the native scheduler: nodes may run again any number of times, each just before it is read.

With a budget, the fastest schedule that fits; without one, the smallest within the bound on time. The scheduler counts
a lower bound on the bytes of any storage assignment (`echo.estimators.scheduler`), which echo's own assignment nearly
always reaches; schedules are compared by their exact bytes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Sequence

import numpy as np

from echo.errors import NativeError
from echo.estimators.scheduler import CHUNKS, LIVE, Scheduler
from echo.estimators.storage_planner import Choice, Evaluation
from echo.ir.schedule import Splits
from echo.policies.problem import Problem
from echo.system.terminal import size_text

_MOST_SIMULATIONS = 40_000  # in one attempt: twice as many gain less than a tenth of a point on small graphs
_AIMS = 4  # budgets aimed at, where the planned storage needs more than the scheduler counts


def can_fit(problem: Problem) -> bool:
    """Whether the scheduler can plan this graph: not in a CachedOp, which plans each pass by itself."""
    return problem.may_split and not problem.forced and bool(problem.candidates)


@dataclass(frozen=True)
class RuinRecreate:
    """Greedy drops at the peak, ruined and recreated; see ``echo/native/planner/fit.cc``.

    ``starts`` are schedules to begin with, ``share`` is the part of a problem's effort for each.
    """

    starts: tuple[Splits, ...] = ({},)
    share: float = 0.5
    name: str = "fit"

    def choose(self, problem: Problem) -> Splits:
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
        self.best: Splits = {}
        self.best_value = problem.value(self.best)

    def consider(self, splits: Splits) -> Evaluation:
        value = self.problem.value(splits)
        if self.problem.rank(value) < self.problem.rank(self.best_value):
            self.best, self.best_value = splits, value
        return value

    def within(self, budget: int, start: Splits) -> None:
        """Looks for the fastest schedule within a budget; aims lower where storage needs more than was counted."""
        counted, needed = self.scheduler.simulate(start).bytes, self.consider(start).bytes
        aim, fits, beyond = int(budget * min(1.0, counted / max(needed, 1))) if start else budget, 0, budget + 1
        for tried in range(_AIMS):
            self.problem.progress(f"schedules of {size_text(aim)}")
            splits, replayed = self.scheduler.fit(self.problem.candidates, aim, self.effort, start)
            value = self.consider(splits)
            if replayed.bytes > aim or (value.bytes <= budget and not tried):
                break
            if value.bytes <= budget:
                fits = aim
            else:
                beyond = aim
            aim = (fits + beyond) // 2 if fits else int(aim * budget / value.bytes)

    def least(self, starts: Sequence[Splits]) -> None:
        """Looks for the smallest schedule within the bound on time, from each start in a thread of its own."""
        self.problem.progress("schedules")
        late = self.problem.max_seconds
        bound = 1e300 if late is None else late
        schedulers = [self.scheduler, *(scheduler_of(self.problem) for _ in starts[1:])]

        def search(scheduler: Scheduler, start: Splits) -> Splits:
            return scheduler.least(self.problem.candidates, bound, self.effort, start)[0]

        with ThreadPoolExecutor(len(schedulers)) as threads:
            schedules = list(threads.map(search, schedulers, starts))
        for splits in schedules:
            self.consider(splits)


def scheduler_of(problem: Problem) -> Scheduler:
    """A scheduler that counts bytes as the storage of this problem does.

    Raises:
        NativeError: the native library is not there.
    """
    measure = CHUNKS if problem.assigns else LIVE
    scheduler = Scheduler(problem.training, problem.overhead.seconds, measure, _recomputable(problem))
    scheduler.end_in(problem.deadline.left)
    return scheduler


def _recomputable(problem: Problem) -> Choice:
    """The choice of all entries that candidates recompute if they run again."""
    mask = np.zeros(problem.evaluator.entries, np.uint8)
    for node in problem.candidates:
        mask[problem.entry_ids(node)] = 1
    return mask
