"""Schedules by the native scheduler: nodes may run again any number of times, each just before it is read.

With a budget, the fastest schedule that fits; without one, ever smaller budgets until none fits within the bound on
time. The scheduler counts what the best storage assignment needs at least (`echo.estimators.scheduler`), which is what
echo's own assignment nearly always achieves; the exact bytes of what it finds decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from echo.errors import NativeError
from echo.estimators.evaluator import Choice, Evaluation
from echo.estimators.scheduler import CHUNKS, LIVE, Scheduler
from echo.policies.problem import Problem
from echo.schedule import Splits
from echo.training_graph import EXECUTOR

_SHARE = 0.1  # of a problem's effort, for one attempt
_MOST_SIMULATIONS = 20_000  # in one attempt: more have not paid on any graph
_STEP = 0.85  # from one budget to the next
_LAST_STEP = 0.99
_AIMS = 4  # budgets aimed at, where the storage that is planned needs more than the scheduler counts


def can_fit(problem: Problem) -> bool:
    """Whether the scheduler knows how this graph is run: not the passes of a CachedOp, which are planned apart."""
    return not problem.once and not problem.forced and problem.training.runner == EXECUTOR and bool(problem.candidates)


@dataclass(frozen=True)
class Fit:
    """Greedy drops at the peak, ruined and recreated; see ``echo/native/planner/fit.cc``."""

    name: str = "fit"

    def choose(self, problem: Problem) -> Splits:
        if not can_fit(problem):
            return {}
        try:
            attempt = _Attempts(problem)
        except NativeError:
            return {}
        return attempt.fastest() if problem.max_bytes is not None else attempt.smallest()


class _Attempts:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        measure = CHUNKS if problem.assigns else LIVE
        seconds = problem.overhead.seconds
        self.scheduler = Scheduler(problem.training, seconds, measure, _recomputable(problem))
        simulations = problem.effort // len(problem.training.nodes)
        self.effort = max(20, min(_MOST_SIMULATIONS, int(_SHARE * simulations)))
        self.best: Splits = {}
        self.best_value = problem.value(self.best)

    def fit(self, budget: int) -> Evaluation | None:
        """The exact value of the fastest schedule within a budget; None where none fits, as the scheduler counts."""
        splits, found = self.scheduler.fit(self.problem.candidates, budget, self.effort)
        value = self.problem.value(splits)
        if self.problem.rank(value) < self.problem.rank(self.best_value):
            self.best, self.best_value = splits, value
        return value if found.bytes <= budget else None

    def fastest(self) -> Splits:
        """Within ``max_bytes``. Aims lower where storage turns out to need more than was counted."""
        wanted = self.problem.max_bytes or 0
        aim = wanted
        for _ in range(_AIMS):
            value = self.fit(aim)
            if value is None or value.bytes <= wanted:
                break
            aim = int(aim * wanted / value.bytes)
        return self.best

    def smallest(self) -> Splits:
        """Within ``max_seconds``."""
        step, last = _STEP, self.best_value.bytes
        while step < _LAST_STEP:
            self.problem.progress(f"budget of {last * step / 2**20:.0f} MB")
            value = self.fit(int(last * step))
            late = self.problem.max_seconds
            if value is not None and (late is None or value.seconds <= late):
                last = min(int(last * step), value.bytes)
            else:
                step = step**0.5
        return self.best


def _recomputable(problem: Problem) -> Choice:
    """The entries that come from a copy if their node runs again."""
    mask = np.zeros(problem.evaluator.entries, np.uint8)
    for node in problem.candidates:
        mask[problem.entry_ids(node)] = 1
    return mask
