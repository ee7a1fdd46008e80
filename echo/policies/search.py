"""The default policy: a hill climb over classes of nodes, refined by schedules.

The climb (`echo.policies.solvers.climb`) decides for whole classes of equivalent nodes: what repeats itself over time
steps or layers. What it finds is refined by schedules in which nodes run again where they are read
(`echo.policies.solvers.ruin_recreate`). A budget is left to those alone where they meet it; they start from all that it
has room for (`echo.policies.solvers.greedy_keep`). Where compute-heavy operators may run again, so is everything. Where
it is cheaper, every choice is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from echo.estimators.evaluator import Choice
from echo.ir.ops import spec
from echo.ir.schedule import Splits
from echo.policies.problem import Problem
from echo.policies.solvers.climb import HillClimb
from echo.policies.solvers.greedy_keep import GreedyKeep
from echo.policies.solvers.ruin_recreate import RuinRecreate, can_fit
from echo.policies.sublinear import Sublinear

_LARGE = 20_000  # nodes: beyond, schedules take more time than planning should, but for a budget
# Nodes up to which schedules start from nothing, too: they come to up to 15 % less memory than the climb on the
# convolutional networks of the benchmarks, of 600 to 2900 nodes, and to half as much again on NMT with its 3800.
_FROM_NOTHING = 3500
_SHARE_OF_KEPT = 0.02  # of the effort, for what is kept of larger graphs: ten times as much brings some hundredths
# Of the effort, with heavy operators: four times as much brought no fewer bytes, twice as much no fewer seconds.
_SHARE_OF_SMALLEST, _SHARE_WITH_HEAVY = 0.1, 0.25
# Of the effort, for each of two starts, at once: half as much came to up to 3 % more on DenseNet, half as much again to
# no less.
_SHARE_OF_TWO = 2.0
_NEAR = 1.02  # times the smallest there is: schedules from nothing hardly ever fit so little


@dataclass(frozen=True)
class Search:
    """Least memory within ``max_seconds``; with ``max_bytes``, the fastest choice that fits."""

    name: str = "search"

    def choose(self, problem: Problem) -> Splits:
        visits = len(problem.training.nodes) * len(problem.match_ranges) << min(64, len(problem.candidates))
        if visits <= problem.effort:
            return problem.chosen(_best_of_all(problem))
        # what is fastest within a budget depends on the budget, and lengths have their own
        hint = problem.hint if problem.max_bytes is None else None
        hinted = None if hint is None else HillClimb(problem).run_from(hint)
        if hinted is not None:
            return problem.chosen(hinted)
        if _runs_heavy(problem):
            return _smallest(problem) if problem.max_bytes is None else _fitted(problem)
        if can_fit(problem) and problem.max_bytes is not None:
            fitted = _fitted(problem)
            if problem.keeps(problem.value(fitted)):
                return fitted
        climbed = problem.chosen(HillClimb(problem).run())
        if not can_fit(problem) or (problem.max_bytes is None and len(problem.training.nodes) > _LARGE):
            return climbed
        return min(climbed, _fit_from(problem, climbed), key=lambda splits: problem.rank(problem.value(splits)))


def _fit_from(problem: Problem, climbed: Splits) -> Splits:
    """Schedules that begin with a choice; without a budget from nothing, too, where graphs are small."""
    if problem.max_bytes is not None:
        return RuinRecreate((climbed,)).choose(problem)
    if len(problem.training.nodes) <= _FROM_NOTHING:
        return RuinRecreate(({}, climbed), _SHARE_OF_TWO).choose(problem)
    return RuinRecreate((climbed,), 1.0).choose(problem)


def _fitted(problem: Problem) -> Splits:
    """A schedule for a budget, without a climb; it is beyond the limits where none was found within.

    From everything down to what there is no room for, then up and down from there; from nothing too where graphs are
    small.
    """
    nodes, heavy = len(problem.training.nodes), _runs_heavy(problem)
    kept = GreedyKeep().choose(problem)
    if not problem.keeps(problem.value(kept)):
        return _down_to(problem) if heavy else RuinRecreate().choose(problem)
    if nodes <= _FROM_NOTHING:
        return RuinRecreate((kept, {}), _SHARE_WITH_HEAVY if heavy else 0.5).choose(problem)
    return kept if nodes > _LARGE else RuinRecreate((kept,), _SHARE_OF_KEPT).choose(problem)


def _down_to(problem: Problem) -> Splits:
    """For a budget that takes heavy operators: up from the smallest there is, and down from nothing."""
    smallest = _smallest(problem)
    near = problem.max_bytes is not None and problem.max_bytes <= _NEAR * problem.value(smallest).bytes
    return RuinRecreate((smallest,) if near else (smallest, {}), _SHARE_WITH_HEAVY).choose(problem)


def _smallest(problem: Problem) -> Splits:
    """The fewest bytes, from deep checkpoints and from nothing down; then the fewest seconds for as many."""
    unbounded = replace(problem, max_bytes=None)
    least = RuinRecreate((Sublinear().choose(unbounded), {}), _SHARE_OF_SMALLEST).choose(unbounded)
    return RuinRecreate((least,), _SHARE_OF_SMALLEST).choose(replace(problem, max_bytes=problem.value(least).bytes))


def _runs_heavy(problem: Problem) -> bool:
    """Whether compute-heavy operators may run again, as often as it takes."""
    return can_fit(problem) and any(spec(problem.training.nodes[node].op).heavy for node in problem.candidates)


def _best_of_all(problem: Problem) -> Choice:
    """Tries every choice: for graphs so small that this is cheaper than a climb."""
    candidates = sorted(problem.candidates)
    choices = (
        problem.choice([number for index, number in enumerate(candidates) if bits >> index & 1])
        for bits in range(1 << len(candidates))
    )
    return min(choices, key=lambda choice: problem.rank(problem.evaluate(choice)))
