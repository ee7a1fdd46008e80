"""The least stashed bytes: a minimum cut between the forward pass and the maps that gradients read.

The stash between the passes is a cut of the forward graph: every map that a gradient reads is in the stash, or is
recomputed from it. The smallest cut is the smallest stash, found in polynomial time (as in functorch's partitioner, He
and Yu, 2023). It does not count the memory that recomputation needs while it runs. Seconds count as bytes at a price,
which is bisected to where the limits are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from echo.ir.schedule import RecomputeSchedule
from echo.policies.problem import Problem
from echo.policies.solvers.min_cut import least_stash

_PRICES = 12  # bisection steps, over the range below
_RANGE = 1e4  # prices go from this part to this multiple of the step's bytes over its seconds


@dataclass(frozen=True)
class Mincut:
    """Minimum cuts at several prices of a second; the best of them keeps the limits where one of them does."""

    name: str = "mincut"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        best = problem.splits(least_stash(problem, 0.0))
        if problem.max_bytes is None and problem.max_seconds is None:
            return best
        if problem.max_bytes is None and problem.value(best).seconds <= (problem.max_seconds or 0.0):
            return best
        ranked = min([best, {}], key=lambda splits: problem.rank(problem.value(splits)))
        return self._bisect(problem, ranked)

    def _bisect(self, problem: Problem, best: RecomputeSchedule) -> RecomputeSchedule:
        middle = problem.value({}).bytes / max(problem.overhead.step_seconds, 1e-9)
        low, high = middle / _RANGE, middle * _RANGE
        for _ in range(_PRICES):
            price = (low * high) ** 0.5
            splits = problem.splits(least_stash(problem, price))
            value = problem.value(splits)
            if problem.rank(value) < problem.rank(problem.value(best)):
                best = splits
            if problem.max_bytes is not None:  # the aim is the highest price at which the cut still fits
                dear = value.bytes > problem.max_bytes
            else:  # the aim is the lowest price at which the cut is fast enough
                dear = value.seconds <= (problem.max_seconds or 0.0)
            low, high = (low, price) if dear else (price, high)
        return best
