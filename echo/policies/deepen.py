"""From a schedule of light operators down to the fewest bytes for which the bound on time has room.

Compute-heavy operators may then run twice, too. Budgets below the bytes of the light schedule are bisected: for each,
`echo.policies.solvers.ruin_recreate.GreedyKeep` finds a schedule in some passes over the graph, until its seconds just
keep the bound. The best of these is improved by ruin and recreate. In a CachedOp, which plans each pass by itself, a
hill climb takes their place.
"""

from __future__ import annotations

from dataclasses import replace

from echo.ir.schedule import RecomputeSchedule
from echo.policies.problem import Problem
from echo.policies.solvers.hill_climb import HillClimb
from echo.policies.solvers.ruin_recreate import GreedyKeep, RuinRecreate, can_fit
from echo.system.terminal import size_text

_BUDGETS, _BUDGETS_OF_LARGE = 7, 4  # that are tried
_LARGE = 20_000  # nodes
# Of the effort: four times as much gained 2 % of the bytes of ResNet and DenseNet, and nothing on other models.
_SHARE = 0.0625
_ABOVE = 1.001  # times a budget: what counts as within it, since storage needs a little more than schedules count


def deepened(problem: Problem, light: RecomputeSchedule) -> RecomputeSchedule:
    """Returns the schedule of the least worth (`Problem.worth`) that was found, at worst the light one."""
    if not can_fit(problem):
        return _best(problem, light, problem.chosen(HillClimb(problem).run()))
    kept = _bisected(problem, light)
    return _best(problem, light, kept, RuinRecreate((kept,), _SHARE).choose(problem))


def _best(problem: Problem, *schedules: RecomputeSchedule) -> RecomputeSchedule:
    return min(schedules, key=problem.worth)


def _bisected(problem: Problem, light: RecomputeSchedule) -> RecomputeSchedule:
    """The best schedule for budgets between nothing and the bytes of the light one."""
    best, low, high = light, 0, problem.value(light).bytes
    for _ in range(_BUDGETS if len(problem.training.nodes) <= _LARGE else _BUDGETS_OF_LARGE):
        budget = (low + high) // 2
        problem.progress(f"compute-heavy operators within {size_text(budget)}")
        kept = GreedyKeep().choose(replace(problem, max_bytes=budget, max_seconds=None))
        value = problem.value(kept)
        in_time = problem.max_seconds is None or value.seconds <= problem.max_seconds
        if value.bytes <= _ABOVE * budget and in_time:
            high = budget
        else:
            low = max(budget, min(value.bytes, high) - 1) if in_time else budget
        if in_time:
            best = _best(problem, best, kept)
    return best
