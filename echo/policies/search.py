"""The default policy: a hill climb over classes of nodes, refined by schedules.

The climb (`echo.policies.climb`) decides for whole classes of equivalent nodes: what repeats itself over time steps or
layers. What it finds is refined by schedules in which nodes run again where they are read (`echo.policies.fit`). A
budget is left to those alone where they meet it; they start from all that it has room for (`echo.policies.keep`).
Where it is cheaper, every choice is tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from echo.estimators.evaluator import Choice
from echo.ops import HEAVY
from echo.policies.climb import Climb
from echo.policies.fit import Fit, can_fit
from echo.policies.keep import Keep
from echo.policies.problem import Problem
from echo.policies.sublinear import Sublinear
from echo.schedule import Splits

_LARGE = 20_000  # nodes: beyond, schedules take more time than planning should, but for a budget
# Nodes up to which schedules start from nothing, too: they come to up to 15 % less memory than the climb on the
# convolutional networks of the benchmarks, of 600 to 2900 nodes, and to half as much again on NMT with its 3800.
_FROM_NOTHING = 3500
_SHARE_OF_KEPT = 0.02  # of the effort, for what is kept of larger graphs: ten times as much brings some hundredths


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
        hinted = None if hint is None else Climb(problem).run_from(hint)
        if hinted is not None:
            return problem.chosen(hinted)
        if can_fit(problem) and problem.max_bytes is not None:
            fitted = _fitted(problem)
            if fitted is not None:
                return fitted
        found = [problem.chosen(Climb(problem).run())]
        if can_fit(problem) and (problem.max_bytes is not None or len(problem.training.nodes) <= _LARGE):
            nothing = problem.max_bytes is None and len(problem.training.nodes) <= _FROM_NOTHING
            starts = (*([{}] if nothing else []), *found)
            found.append((Fit(starts, 1.0) if problem.max_bytes is None else Fit(starts)).choose(problem))
        if _runs_heavy(problem):
            found.append(Sublinear().choose(problem))
        return min(found, key=lambda splits: problem.rank(problem.value(splits)))


def _fitted(problem: Problem) -> Splits | None:
    """A schedule within the limits, without a climb; None where none was found.

    From everything down to what there is no room for, then up and down from there; from nothing too where graphs are
    small. Where that does not fit, there are deeper checkpoints.
    """
    nodes = len(problem.training.nodes)
    kept = Keep().choose(problem)
    if not problem.keeps(problem.value(kept)):
        deeper = [Sublinear().choose(problem)] if _runs_heavy(problem) else []
        fitted = Fit((*deeper, {})).choose(problem)
    elif nodes <= _FROM_NOTHING:
        # a problem with heavy operators comes with more effort
        fitted = Fit((kept, {}), 0.25 if _runs_heavy(problem) else 0.5).choose(problem)
    else:
        fitted = kept if nodes > _LARGE else Fit((kept,), _SHARE_OF_KEPT).choose(problem)
    return fitted if problem.keeps(problem.value(fitted)) else None


def _runs_heavy(problem: Problem) -> bool:
    """Whether compute-heavy operators may run again, as often as it takes."""
    return can_fit(problem) and any(problem.training.nodes[node].op in HEAVY for node in problem.candidates)


def _best_of_all(problem: Problem) -> Choice:
    """Tries every choice: for graphs so small that this is cheaper than a climb."""
    candidates = sorted(problem.candidates)
    choices = (
        problem.choice([number for index, number in enumerate(candidates) if bits >> index & 1])
        for bits in range(1 << len(candidates))
    )
    return min(choices, key=lambda choice: problem.rank(problem.evaluate(choice)))
