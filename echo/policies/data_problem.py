"""Policies on training graphs that come as data (`echo.ir.data_graph`)."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from echo.errors import OptionError
from echo.estimators.cost_model import CostModel
from echo.estimators.scheduler import LiveEvaluator
from echo.estimators.storage_planner import Evaluation
from echo.ir.graph import Entry
from echo.ir.ops import is_heavy_in_torch
from echo.ir.schedule import RecomputeSchedule
from echo.ir.training_graph import TrainingGraph
from echo.policies.least import least
from echo.policies.problem import Policy, Problem, partition, run_with_deadline
from echo.system.process import NEVER, Deadline

_SIMULATIONS = 500_000  # of the whole graph, that a search may take: a few seconds for some hundred nodes


class Solved(NamedTuple):
    """A schedule, its exact value, and whether heavy operators were offered."""

    splits: RecomputeSchedule
    value: Evaluation
    heavy: bool

    @property
    def planned_bytes(self) -> int:
        """The bytes that are alive at once at most."""
        return self.value.bytes

    @property
    def seconds(self) -> float:
        """The recomputation in a step."""
        return self.value.seconds


def problem_of_graph(
    training: TrainingGraph,
    seconds: Sequence[float],
    *,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    heavy: bool = True,
    once: bool = False,
    simulations: int = _SIMULATIONS,
    deadline: Deadline = NEVER,
) -> Problem:
    """The problem of a data graph: all forward nodes but the last, the loss, are candidates.

    ``seconds[i]`` is the time of node i, ``max_bytes`` bounds the bytes that are alive at once, ``max_seconds`` the
    recomputation in a step. Without ``heavy``, only light operators are candidates.

    Raises:
        OptionError: a limit makes no sense.
    """
    for name, limit in (("max_bytes", max_bytes), ("max_seconds", max_seconds)):
        if limit is not None and not limit >= 0:
            raise OptionError(f"{name}: expected zero or more, got {limit!r}")
    forward = [number for number, node in training.operators() if node.forward]
    candidates = {n: (Entry(n),) for n in forward[:-1] if heavy or not is_heavy_in_torch(training.nodes[n].op)}
    return Problem(
        training=training,
        overhead=CostModel(tuple(seconds), sum(seconds), len(training.nodes), 0),
        evaluator=LiveEvaluator(training, seconds),
        candidates=candidates,
        segments=partition(training, candidates),
        forced=frozenset(),
        match_ranges=(1,),  # live bytes do not depend on it
        max_seconds=max_seconds,
        max_bytes=max_bytes,
        effort=simulations * len(training.nodes),
        once=once,
        deadline=deadline,
    )


def solve_graph(
    policy: Policy,
    training: TrainingGraph,
    seconds: Sequence[float],
    *,
    max_bytes: int | None = None,
    deadline: Deadline = NEVER,
) -> Solved:
    """The schedule of a policy for a data graph: of light operators alone, or with heavy ones where that is better.

    With a budget it is the fastest that needs at most ``max_bytes``, else the one with the fewest bytes that is found.
    At the ``deadline`` the best schedule so far is taken.
    """

    def solve(problem: Problem) -> Solved:
        splits, _ = run_with_deadline(policy, problem)
        return Solved(splits, problem.value(splits), problem.candidates is not light.candidates)

    light = problem_of_graph(training, seconds, max_bytes=max_bytes, heavy=False, deadline=deadline)
    if max_bytes is None:
        return solve(light)
    heavy = problem_of_graph(training, seconds, max_bytes=max_bytes, deadline=deadline)
    # Light operators alone cost up to 3 points of overhead more than the published plans of tests/data/ilp.
    found = [solve(problem) for problem in (light, heavy)]
    best = min(found, key=lambda solved: heavy.rank(solved.value))
    if best.planned_bytes > max_bytes:
        best = min(best, least((light, heavy), solve, heavy), key=lambda solved: solved.planned_bytes)
    return best
