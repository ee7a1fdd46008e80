"""The fewest bytes that can be reached, and the choices that searches for budgets have found."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, Callable, Generic, Iterable, Mapping, Protocol, Sequence, TypeVar

from echo.ir.schedule import RecomputeSchedule
from echo.ir.training_graph import TrainingGraph
from echo.policies.mincut import least_bytes
from echo.policies.problem import Problem
from echo.system.process import Deadline

# Schedules that earlier searches ended with: a least that was named to the user is met when it is asked for.

_MOST_GRAPHS, _MOST_SCHEDULES = 64, 16


class Known:
    """The schedules of each training graph, the oldest first to go.

    Args:
        value: what `to_value` returned, in this process or another one.

    Raises:
        ValueError: it has another form.
    """

    def __init__(self, value: Mapping[str, Any] | None = None) -> None:
        self._schedules: dict[str, list[RecomputeSchedule]] = defaultdict(list)
        for key, schedules in (value or {}).items():
            self._schedules[key] = [_schedule(rows) for rows in schedules]

    def to_value(self) -> dict[str, Any]:
        """Returns all schedules as a JSON value."""
        return {key: [[[node, *positions] for node, positions in schedule.items()] for schedule in schedules]
                for key, schedules in self._schedules.items()}  # fmt: skip

    def add(self, training: TrainingGraph, schedule: RecomputeSchedule) -> None:
        schedules = self._schedules[_key(training)]
        if schedule not in schedules:
            schedules.append(schedule)
            del schedules[:-_MOST_SCHEDULES]
        while len(self._schedules) > _MOST_GRAPHS:
            del self._schedules[next(iter(self._schedules))]

    def of(self, problem: Problem) -> list[RecomputeSchedule]:
        """The schedules of the problem's graph that choose among its candidates alone."""
        schedules = self._schedules.get(_key(problem.training), [])
        return [schedule for schedule in schedules if all(node in problem.candidates for node in schedule)]


def _key(training: TrainingGraph) -> str:
    """A digest that is the same in every process."""
    digest = hashlib.blake2b(str(training.runner).encode(), digest_size=16)
    for node in training.nodes:
        digest.update(repr((node.op, node.inputs, node.control_deps, node.outputs)).encode())
    return digest.hexdigest()


def _schedule(rows: Any) -> RecomputeSchedule:
    whole = isinstance(rows, list) and all(isinstance(row, list) and len(row) > 1 for row in rows)
    if not whole or not all(type(number) is int and number >= 0 for row in rows for number in row):
        raise ValueError("expected schedules: lists of a node and its positions")
    return {row[0]: tuple(sorted(set(row[1:]))) for row in rows}


# The fastest schedule within a budget, and the fewest bytes that can be reached where no schedule keeps it.
#
# What is named as the least is the fewest bytes of all that was found, by searches that do not look at the budget
# too, so that it is not more than what a smaller budget reaches.

_STEP = 0.97  # times the fewest bytes so far: the next budget of the search for fewer bytes
_MOST_STEPS = 4
_NEAR = 0.9  # times the fewest bytes so far: a budget above that is aimed at itself
_EFFORT = 8  # times less than that of the first search: on random graphs as much led to no fewer bytes


class Solution(Protocol):
    """Bytes and seconds of a schedule."""

    @property
    def planned_bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...


S = TypeVar("S", bound=Solution)
Solve = Callable[[Problem], S]


@dataclass(frozen=True)
class Attempt(Generic[S]):
    """What a search for a budget found: a solution that keeps it, or the fewest bytes so far where none does.

    ``fitted`` are all solutions of searches for the budget, ``free`` those of searches for the fewest bytes.
    ``untried`` are problems that were not searched for the fewest bytes yet, ``last`` is the one with all candidates.
    """

    solution: S
    keeps: bool
    fitted: Sequence[S]
    free: Sequence[S]
    untried: Sequence[Problem]
    last: Problem

    def least(self, solve: Solve[S], deadline: Deadline) -> S:
        """Returns the solution with the fewest bytes that is found until the deadline, whatever the budget."""
        untried = [replace(problem, deadline=deadline) for problem in self.untried]
        fewest = least(untried, solve, replace(self.last, deadline=deadline), self.free)
        return fastest(self.last, [fewest, *self.free, *self.fitted])


def fastest_within(problems: Sequence[Problem], solve: Solve[S], nothing: Callable[[], S]) -> Attempt[S]:
    """Searches for the fastest solution that keeps the limits; where they are out of reach, returns ``nothing``.

    Each of ``problems`` offers more candidates than the one before, and gets its part of the time until the deadline.
    The fewest bytes for all but the last are looked at, too: a search for a budget may miss what that one finds.
    """
    fitted: list[S] = []
    free: list[S] = []
    untried: list[Problem] = []
    last = problems[-1]
    for index, problem in enumerate(problems):
        if _out_of_reach(problem):
            untried.append(problem)
            continue
        parts = 2 * (len(problems) - index) - 1
        fitted.append(solve(_within_part(problem, parts)))
        if _keeps(problem, fitted[-1]):
            break
        if problem is last:
            untried.append(problem)
        else:
            free.append(solve(_within_part(unlimited(problem), parts - 1)))
    best = fastest(last, [*free, *fitted] or [nothing()])  # of light operators alone where both are as fast
    keeps = _keeps(last, best) or (_fits(last, best) and bool(free))
    return Attempt(best, keeps, fitted, free, untried, last)


def fastest(problem: Problem, found: Sequence[S]) -> S:
    """The fastest solution that keeps the budget, else the one with the fewest bytes.

    It is longer than the bound only where all are: the user insists on nodes, or the policy knows no bound.
    """
    allowed = [solution for solution in found if _in_time(problem, solution)] or found
    kept = [solution for solution in allowed if _fits(problem, solution)]
    return min(kept, key=lambda solution: solution.seconds) if kept else _fewest(problem, found)


def least(problems: Sequence[Problem], solve: Solve[S], last: Problem, free: Iterable[S] = ()) -> S:
    """Returns the solution with the fewest bytes that is found without a look at a budget.

    ``free`` are such solutions, ``problems`` are to be searched for others; ``last`` offers the most candidates.
    """
    found = list(free)
    for index, problem in enumerate(problems):
        found.append(solve(_within_part(unlimited(problem), len(problems) - index + 1)))
    return _lowered(last, solve, _fewest(last, found))


def unlimited(problem: Problem) -> Problem:
    """The problem without its budget: the fewest bytes are wanted."""
    return replace(problem, max_bytes=None, warm_start=None)


def _lowered(problem: Problem, solve: Solve[S], fewest: S) -> S:
    """Searches for the budget if it is near, then for a little less than the fewest bytes while that succeeds."""
    budget = problem.max_bytes
    if budget is not None and _NEAR * fewest.planned_bytes <= budget < _STEP * fewest.planned_bytes:
        fewest = _below(problem, solve, fewest, budget) or fewest
    for _ in range(_MOST_STEPS):
        lower = _below(problem, solve, fewest, int(_STEP * fewest.planned_bytes))
        if lower is None:
            break
        fewest = lower
    return fewest


def _below(problem: Problem, solve: Solve[S], fewest: S, limit: int) -> S | None:
    """Searches for a solution within a limit; returns None where it has no fewer bytes than the fewest so far."""
    smaller = replace(problem, max_bytes=limit, effort=problem.effort // _EFFORT, warm_start=None)
    if problem.deadline.is_over or _out_of_reach(smaller):
        return None
    solution = solve(smaller)
    return None if _fewest(problem, [fewest, solution]) is fewest else solution


def _fewest(problem: Problem, found: Iterable[S]) -> S:
    return min(found, key=lambda solution: (not _in_time(problem, solution), solution.planned_bytes, solution.seconds))


def _within_part(problem: Problem, parts: int) -> Problem:
    return replace(problem, deadline=problem.deadline.part(parts))


def _out_of_reach(problem: Problem) -> bool:
    """Whether a lower bound, which is cheap to compute, shows that no choice keeps the budget."""
    return problem.max_bytes is not None and problem.may_split and least_bytes(problem) > problem.max_bytes


def _in_time(problem: Problem, solution: Solution) -> bool:
    return problem.max_seconds is None or solution.seconds <= problem.max_seconds


def _fits(problem: Problem, solution: Solution) -> bool:
    return problem.max_bytes is None or solution.planned_bytes <= problem.max_bytes


def _keeps(problem: Problem, solution: Solution) -> bool:
    return _fits(problem, solution) and _in_time(problem, solution)
