"""The planner of a graph in C++, and the one that is its specification."""

from __future__ import annotations

from echo.estimators.storage_planner import ReferencePlanner, StoragePlanner
from tests.support.cases import Case


def seconds_of(case: Case) -> list[float]:
    """Powers of two of a second: their sums say exactly which nodes were counted."""
    return [2.0 ** -(number % 40) for number in range(len(case.training.nodes))]


def planners(case: Case) -> tuple[StoragePlanner, ReferencePlanner]:
    seconds = seconds_of(case)
    return StoragePlanner(case.training, seconds), ReferencePlanner(case.training, seconds)
