"""The default policy: a hill climb over classes of nodes with MXNet's planner, replayed, as the objective.

It starts from "recompute everything that may be", flips one class at a time, and refines the classes once nothing
improves. With a bound on time the climb runs under a growing price of a second until the choice keeps the bound.
Everything is deterministic: the effort is counted in visited nodes, not in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Sequence

import numpy as np

from echo.passes.classes import classes
from echo.policies.problem import Choice, Evaluation, Problem

# A climb looks at few match ranges, the final decision at all of them. Small ranges let chunks of unlike sizes apart.
_CLIMB_RANGES = (1, 2, 4, 16)
_ROUNDS = (0, 1, 2, 3)
_PRICES = 6  # bisection steps between a free second and one that nothing is worth
_INITIAL_SHARE = 0.5  # of the effort, for finding a start before the last climb

_Rank = Callable[[Evaluation], Sequence[float]]


@dataclass(frozen=True)
class Search:
    """Least memory within ``max_seconds``; with ``max_bytes``, the fastest choice that fits."""

    name: str = "search"

    def choose(self, problem: Problem) -> Choice:
        return _Climb(problem).run()


class _Climb:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        candidates = sorted(problem.candidates)
        ids = {number: problem.entry_ids(number) for number in candidates}
        self.levels = [
            [np.array([entry for number in group for entry in ids[number]]) for group in groups]
            for groups in _distinct([classes(problem.training, candidates, rounds) for rounds in _ROUNDS])
        ]
        own = problem.match_ranges[0]
        self.ranges = tuple(sorted({own, *_CLIMB_RANGES} & {own, *problem.match_ranges}))
        self.left = max(200, problem.effort // (len(problem.training.nodes) * len(self.ranges)))
        self.best = problem.choice()
        self.best_value = self.evaluate(self.best)

    def evaluate(self, choice: Choice) -> Evaluation:
        self.left -= 1
        value = self.problem.evaluate(choice, self.ranges)
        return value

    def consider(self, choice: Choice, value: Evaluation) -> None:
        if self.problem.rank(value) < self.problem.rank(self.best_value):
            self.best, self.best_value = choice.copy(), value

    def run(self) -> Choice:
        everything = self.problem.choice(sorted(self.problem.candidates))
        self.consider(everything, self.evaluate(everything))
        reserve = int(self.left * (1 - _INITIAL_SHARE))
        start = self.climb(everything, self.levels[:2], _memory_first, reserve)
        if self.problem.rank(self.best_value)[0] > 0 or self.problem.max_bytes is not None:
            self.price_seconds(start, reserve)
        self.problem.progress("refining")
        self.climb(self.best, self.levels, self.problem.rank, 0)
        return self.best

    def price_seconds(self, start: Choice, reserve: int) -> None:
        """Bisects the price of a second, in bytes, to where the climb just keeps the limits."""
        stock = self.problem.training.planned_bytes
        step = max(self.problem.overhead.step_seconds, 1e-9)
        low, high = 0.01, 100.0  # as shares of the stock's bytes for a step's time
        for _ in range(_PRICES):
            if self.left <= reserve:
                return
            price = (low * high) ** 0.5 * stock / step
            found = self.climb(start, self.levels[:2], lambda value, price=price: _priced(value, price), reserve)
            value = self.evaluate(found)
            if self._price_is_enough(value):
                high = (low * high) ** 0.5
            else:
                low = (low * high) ** 0.5

    def _price_is_enough(self, value: Evaluation) -> bool:
        if self.problem.max_bytes is not None:  # the highest price is wanted at which the choice still fits
            return value.bytes > self.problem.max_bytes
        return self.problem.rank(value)[0] == 0  # the lowest price at which the choice is fast enough

    def climb(self, start: Choice, levels: Sequence[Sequence[Choice]], rank: _Rank, reserve: int) -> Choice:
        """Flips one class after the other while that helps, coarse classes first."""
        choice = start.copy()
        value = self.evaluate(choice)
        self.consider(choice, value)
        for level in levels:
            unchanged, position = 0, 0
            while unchanged < len(level) and self.left > reserve:
                group = level[position % len(level)]
                position += 1
                before = choice[group]
                choice[group] = 1 - before[0]
                flipped = self.evaluate(choice)
                self.consider(choice, flipped)
                if rank(flipped) < rank(value):
                    value, unchanged = flipped, 0
                else:
                    choice[group] = before
                    unchanged += 1
        return choice


def _memory_first(value: Evaluation) -> Sequence[float]:
    return (value.bytes, value.seconds)


def _priced(value: Evaluation, price: float) -> Sequence[float]:
    return (value.bytes + price * value.seconds,)


def _distinct(levels: list[list[tuple[int, ...]]]) -> list[list[tuple[int, ...]]]:
    """Without the levels that have no more groups than the one before."""
    kept: list[list[tuple[int, ...]]] = []
    for level in levels:
        if not kept or len(level) > len(kept[-1]):
            kept.append(level)
    return kept
