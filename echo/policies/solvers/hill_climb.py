"""A hill climb over classes of equivalent nodes, in several orders."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Callable, Protocol, Sequence

import numpy as np

from echo.estimators.storage_planner import Evaluation, RecomputeMask
from echo.ir.training_graph import StorageStrategy
from echo.policies.equivalence_classes import classes
from echo.policies.problem import Problem, WarmStart

# The objectives by which a climb compares choices: a problem with its limits, or bytes and seconds at a price.


class Objective(Protocol):
    """Ranks choices: a climb prefers those of smaller rank."""

    def rank(self, value: Evaluation) -> tuple[float, ...]: ...

    def most_bytes(self, current: Evaluation) -> int | None:
        """Bytes above which no choice can rank before the current one, None where there is no such bound."""


@dataclass(frozen=True)
class Price:
    """Ranks choices by bytes, where a second costs ``price`` bytes."""

    price: float

    def rank(self, value: Evaluation) -> tuple[float, ...]:
        return (value.bytes + self.price * value.seconds, value.seconds)

    def most_bytes(self, current: Evaluation) -> int | None:
        return int(self.rank(current)[0])


@dataclass(frozen=True)
class ClassSaving:
    """A class of nodes: the bytes that recomputing it saves, and the seconds that it takes."""

    group: RecomputeMask
    bytes: int
    seconds: float


# A hill climb over classes of nodes, with MXNet's planner, replayed, as the objective.
#
# It starts from all candidates recomputed and flips one class at a time, once for each match range of MXNet's
# planner; the best few climbs go on with finer classes. With a bound on time each class is weighed alone, by the
# bytes that it saves and the seconds that it takes, and the price of a second is bisected to where the choice just
# keeps the bound; then again, with a climb at each price. A class that fits only in part is split. The effort that is
# left goes into threshold accepting (Dueck and Scheuer, 1990): random flips that may cost a little memory, ever less.
# Everything is deterministic: the effort is counted in visited nodes, not in seconds, and the random flips come from
# a fixed seed. With a warm start from another graph of the same model the climb begins at that choice, and takes a
# tenth of the effort.

_ROUNDS = (0, 1, 2, 3)  # of the classes, coarse to fine
_FINALISTS = 3  # match ranges that are climbed to the end
_SWEEPS = 4  # through all classes: about as many as a climb takes
_FINAL_SHARE = 0.75  # of the effort, for those climbs; the rest is for threshold accepting
_FLIPS_A_CANDIDATE = 60  # evaluations beyond which more have not paid on any model of the benchmarks
_ASSIGNMENT_SHARE = 0.4  # of the effort, on top of it
_ASSIGNMENT_COST = 3  # one assignment takes as long as so many evaluations by a match range
_WARM_SHARE = 0.1  # of the effort, for a climb with a warm start
_PRICES = 6  # bisection steps between a free second and one that no class is worth, each of them a climb
_CLIMB_AROUND = 3.0  # climbs search prices from this part to this multiple of a price that was found without climbs
_THRESHOLD = 0.02  # the part of the bytes that a random flip may cost at first


class HillClimb:
    """One climb on a problem: `run` starts from all candidates recomputed, `run_from` from a warm start."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        candidates = sorted(problem.candidates)
        ids = {number: problem.entry_ids(number) for number in candidates}
        partitions = classes(problem.training, candidates, _ROUNDS)
        partitions.append([(number,) for number in candidates])
        self.levels = [
            [np.array([entry for number in group for entry in ids[number]]) for group in groups]
            for groups in _distinct(partitions)
        ]
        self.ranges = problem.match_ranges[:1]
        # counted in evaluations under one match range
        self.left = min(problem.effort // len(problem.training.nodes), 200 + _FLIPS_A_CANDIDATE * len(candidates))
        self.total = self.left
        self.best = problem.choice()
        self.best_value = self.evaluate(self.best)
        self.best_ranges = self.ranges

    def evaluate(self, choice: RecomputeMask, limit: int | None = None) -> Evaluation:
        self.left -= _ASSIGNMENT_COST if StorageStrategy.ASSIGNED in self.ranges else 1
        return self.problem.evaluate(choice, self.ranges, limit)

    def consider(self, choice: RecomputeMask, value: Evaluation) -> None:
        if self.problem.rank(value) < self.problem.rank(self.best_value):
            self.best, self.best_value, self.best_ranges = choice.copy(), value, self.ranges

    def run(self) -> RecomputeMask:
        starts = self.coarse_climbs()
        final = int(self.left * _FINAL_SHARE)
        worth: list[ClassSaving] = []
        for _, match_range, start in starts:
            self.problem.progress(f"match range {match_range}")
            reserve = self.left - final // len(starts)
            self.ranges = (match_range,)
            beyond = None
            if self.problem.max_bytes is not None or self.problem.rank(self.evaluate(start))[0] > 0:
                worth = worth or self.savings_of(start)
                start, beyond = self.price_seconds(start, worth, self.left - (self.left - reserve) // 2)
            within = self.climb(start, self.levels, self.problem, reserve)
            if beyond is not None:
                self.blend(within, beyond)
        self.problem.progress("polishing")
        self.ranges = self.best_ranges
        self.accept_within_threshold()
        if self.problem.assigns:
            self.assign([start for _, _, start in starts])
        return self.best

    def assign(self, starts: list[RecomputeMask]) -> None:
        """Climbs for echo's own storage assignment, from the choices so far.

        Climbs by the peak of live bytes are quick and give a start; a climb by the assigned bytes follows.
        """
        self.problem.progress("storage assignment")
        effort = int(_ASSIGNMENT_SHARE * self.total)
        self.left = effort
        self.ranges = (StorageStrategy.PEAK,)
        choices = [self.best, *starts]
        choices += [self.climb_apart(start, int(0.7 * effort)) for start in (self.best, starts[0])]
        self.ranges = (StorageStrategy.ASSIGNED,)
        self.climb(self.first_of(choices), self.levels[:3], self.problem, 0)

    def first_of(self, choices: Sequence[RecomputeMask]) -> RecomputeMask:
        """The best of these choices by the limits."""
        best, best_value = choices[0], self.evaluate(choices[0])
        for choice in choices[1:]:
            value = self.evaluate(choice, self.problem.most_bytes(best_value))
            if self.problem.rank(value) < self.problem.rank(best_value):
                best, best_value = choice, value
        return best

    def climb_apart(self, start: RecomputeMask, reserve: int) -> RecomputeMask:
        """A climb whose values are not comparable with others, so that they do not count for the best choice."""
        saved = self.best, self.best_value, self.best_ranges
        try:
            return self.climb(start, self.levels[:3], self.problem, reserve)
        finally:
            self.best, self.best_value, self.best_ranges = saved

    def run_from(self, warm_start: WarmStart) -> RecomputeMask | None:
        """A short climb from the choice for another graph of the model; None where it stays beyond the limits."""
        choice = self.problem.choice(warm_start.nodes(self.problem.training, sorted(self.problem.candidates)))
        self.ranges = (self.problem.match_ranges[self.problem.evaluate(choice).best],)
        self.climb(choice, self.levels[:3], self.problem, int(self.left * (1 - _WARM_SHARE)))
        return self.best.copy() if self.problem.rank(self.best_value)[0] == 0 and self.best.any() else None

    def coarse_climbs(self) -> list[tuple[int, int, RecomputeMask]]:
        """The best few (bytes, match range, choice) of quick climbs from everything recomputed, at any seconds."""
        everything = self.problem.choice(sorted(self.problem.candidates))
        totals = self.problem.evaluate(everything).totals
        promising = sorted(range(len(totals)), key=lambda index: totals[index])[: self.affordable(self.levels[:1])]
        self.left -= len(totals)
        reserve = self.left // 2
        climbs = []
        for index in promising:
            match_range = self.problem.match_ranges[index]
            self.ranges = (match_range,)
            choice = self.climb(everything, self.levels[:1], Price(0.0), reserve)
            climbs.append((self.evaluate(choice).bytes, match_range, choice))
        return sorted(climbs, key=lambda item: item[:2])[: min(_FINALISTS, self.affordable(self.levels[1:2]))]

    def affordable(self, levels: Sequence[Sequence[RecomputeMask]]) -> int:
        """The number of climbs over these classes for which the effort suffices, at least one."""
        return max(1, self.total // (_SWEEPS * max(1, sum(map(len, levels)))))

    def savings_of(self, choice: RecomputeMask) -> list[ClassSaving]:
        """The worth of each class of a choice, taken out alone: the bytes of several classes nearly add up."""
        value = self.evaluate(choice)
        savings = []
        level = next((level for level in self.levels[1::-1] if len(level) < self.left // 2), [])
        for group in level:
            if choice[group].all():
                choice[group] = 0
                without = self.evaluate(choice)
                choice[group] = 1
                savings.append(ClassSaving(group, without.bytes - value.bytes, value.seconds - without.seconds))
        return savings

    def price_seconds(
        self, start: RecomputeMask, worth: Sequence[ClassSaving], reserve: int
    ) -> tuple[RecomputeMask, RecomputeMask | None]:
        """Bisects the price of a second to where the choice just keeps the limits.

        The choice at a price has first all classes that are worth their seconds; then, while effort is left, it is the
        result of a climb from these. Returns the best choice of all, and the last one beyond the limits, if any was.
        """
        a_step = self.problem.training.planned_bytes / max(self.problem.costs.step_seconds, 1e-9)
        low, high = 0.01 * a_step, 100.0 * a_step
        search = _PriceSearch(self, start)
        if worth:
            low, high = search.bisect(low, high, 2 * _PRICES, lambda price: _worth_it(start, worth, price))
            low, high = low / _CLIMB_AROUND, high * _CLIMB_AROUND
        from_here = search.best

        def climbed(price: float) -> RecomputeMask | None:
            if self.left <= reserve:
                return None
            return self.climb(from_here, self.levels[:2], Price(price), reserve)

        search.bisect(low, high, _PRICES, climbed)
        return search.best, search.beyond

    def blend(self, within: RecomputeMask, beyond: RecomputeMask) -> None:
        """Bisects for a choice that is ``beyond`` up to some node, and ``within`` from there on.

        Where two choices differ in a class, no price leads to a choice between them. This one takes as much of the
        class, in the graph's order, as the limits allow.
        """
        different = np.flatnonzero(within != beyond)
        low, high = 0, len(different)
        while high - low > 1:
            middle = (low + high) // 2
            choice = within.copy()
            choice[different[:middle]] = beyond[different[:middle]]
            value = self.evaluate(choice)
            self.consider(choice, value)
            low, high = (middle, high) if self.problem.keeps(value) else (low, middle)

    def climb(
        self, start: RecomputeMask, levels: Sequence[Sequence[RecomputeMask]], objective: Objective, reserve: int
    ) -> RecomputeMask:
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
                flipped = self.evaluate(choice, objective.most_bytes(value))
                if objective.rank(flipped) < objective.rank(value):
                    value, unchanged = flipped, 0
                    self.consider(choice, value)
                else:
                    choice[group] = before
                    unchanged += 1
        return choice

    def accept_within_threshold(self) -> None:
        """Random flips that keep the limits and may cost a threshold of memory, which falls to nothing."""
        generator = random.Random(0)
        choice, value = self.best.copy(), self.best_value
        total = self.left
        while self.left > 0 and any(self.levels):
            level = generator.choice(self.levels)
            group = generator.choice(level)
            before = choice[group]
            choice[group] = 1 - before[0]
            most = int(value.bytes * (1 + _THRESHOLD * (self.left / total) ** 2))
            flipped = self.evaluate(choice, most)
            if flipped.bytes <= most and self.problem.rank(flipped)[0] <= self.problem.rank(value)[0]:
                value = flipped
                self.consider(choice, value)
            else:
                choice[group] = before


def _worth_it(choice: RecomputeMask, worth: Sequence[ClassSaving], price: float) -> RecomputeMask:
    """The choice without the classes that save fewer bytes than their seconds cost."""
    choice = choice.copy()
    for item in worth:
        if item.bytes < price * item.seconds:
            choice[item.group] = 0
    return choice


class _PriceSearch:
    """The best choice that was found at any price of a second, and the last one beyond the limits, if any was."""

    def __init__(self, climb: HillClimb, start: RecomputeMask) -> None:
        self.climb, self.problem = climb, climb.problem
        self.best, self.best_value = start, climb.evaluate(start)
        self.beyond = None if self.problem.keeps(self.best_value) else start

    def bisect(
        self, low: float, high: float, steps: int, choice_at: Callable[[float], RecomputeMask | None]
    ) -> tuple[float, float]:
        """Bisects the prices between which choices begin to keep the limits, until ``choice_at`` returns None."""
        for _ in range(steps):
            price = (low * high) ** 0.5
            choice = choice_at(price)
            if choice is None:
                break
            value = self.climb.evaluate(choice)
            self.climb.consider(choice, value)
            if self.problem.rank(value) < self.problem.rank(self.best_value):
                self.best, self.best_value = choice, value
            if not self.problem.keeps(value):
                self.beyond = choice
            if self._is_enough(value):
                high = price
            else:
                low = price
        return low, high

    def _is_enough(self, value: Evaluation) -> bool:
        most = self.problem.max_bytes
        if most is not None:  # the aim is the highest price at which the choice still fits
            return value.bytes > most
        return self.problem.rank(value)[0] == 0  # the aim is the lowest price at which the choice is fast enough


def _distinct(levels: list[list[tuple[int, ...]]]) -> list[list[tuple[int, ...]]]:
    """The levels that have more groups than the one before."""
    finer_levels: list[list[tuple[int, ...]]] = []
    for level in levels:
        if level and (not finer_levels or len(level) > len(finer_levels[-1])):
            finer_levels.append(level)
    return finer_levels
