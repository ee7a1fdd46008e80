"""A policy under a deadline: when the time is over, its best choice so far is taken."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Sequence

from echo.estimators.storage_planner import Choice, Evaluation
from echo.ir.schedule import Splits
from echo.ir.training_graph import PEAK
from echo.policies.problem import Policy, Problem
from echo.system.process import OutOfTime


def chosen_in_time(policy: Policy, problem: Problem) -> tuple[Splits, bool]:
    """The schedule of a policy, and whether the policy ended before the problem's deadline.

    Otherwise the schedule is the best that the policy evaluated until then, or the one that recomputes nothing.
    """
    if problem.deadline.at == math.inf:
        return policy.choose(problem), True
    timed = _Timed(problem)
    try:
        return policy.choose(replace(problem, evaluator=timed)), not problem.deadline.is_over
    except OutOfTime:
        return timed.best, False


class _Timed:
    """An evaluator that remembers the best choice, and raises `OutOfTime` at the deadline."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._evaluator = problem, problem.evaluator
        self.entries = problem.evaluator.entries
        self.best: Splits = {}
        self._rank = problem.rank(problem.value({}))

    def evaluate(
        self, recompute: Choice, match_ranges: Sequence[int], limit: int | None = None, splits: Splits | None = None
    ) -> Evaluation:
        """As `echo.estimators.storage_planner.Evaluator.evaluate`."""
        if self._problem.deadline.is_over:
            raise OutOfTime
        evaluation = self._evaluator.evaluate(recompute, match_ranges, limit, splits)
        exact = limit is None or evaluation.bytes <= limit
        if exact and PEAK not in match_ranges and self._problem.rank(evaluation) < self._rank:
            self._rank = self._problem.rank(evaluation)
            self.best = self._problem.chosen(recompute) if splits is None else splits
        return evaluation

    def executed(self, recompute: Choice, splits: Splits | None = None) -> Choice:
        """As `echo.estimators.storage_planner.Evaluator.executed`."""
        return self._evaluator.executed(recompute, splits)
