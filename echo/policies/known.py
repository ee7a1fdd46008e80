"""Schedules that earlier searches ended with: a least that was named to the user is met when it is asked for."""

from __future__ import annotations

from collections import defaultdict

from echo.ir.schedule import Splits
from echo.ir.training_graph import TrainingGraph
from echo.policies.problem import Problem

_MOST_GRAPHS, _MOST_SCHEDULES = 64, 16


class Known:
    """The schedules of each training graph, those that were added last first to go."""

    def __init__(self) -> None:
        self._schedules: dict[int, list[Splits]] = defaultdict(list)

    def add(self, training: TrainingGraph, splits: Splits) -> None:
        """Remembers a schedule."""
        schedules = self._schedules[_key(training)]
        if splits not in schedules:
            schedules.append(splits)
            del schedules[:-_MOST_SCHEDULES]
        while len(self._schedules) > _MOST_GRAPHS:
            del self._schedules[next(iter(self._schedules))]

    def of(self, problem: Problem) -> list[Splits]:
        """The schedules of the problem's graph that choose among its candidates alone."""
        schedules = self._schedules.get(_key(problem.training), [])
        return [splits for splits in schedules if all(node in problem.candidates for node in splits)]


def _key(training: TrainingGraph) -> int:
    nodes = [(node.op, node.inputs, node.control_deps, node.outputs) for node in training.nodes]
    return hash((training.runner, tuple(nodes)))
