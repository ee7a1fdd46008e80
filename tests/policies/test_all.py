"""Everything that may run again does, once."""

from __future__ import annotations

from echo.ir.schedule import first_backward
from echo.policies.all import All
from echo.policies.data_problem import problem_of_graph
from tests.support.data_graphs import unrolled


def test_every_candidate_runs_again_once_whatever_the_limits() -> None:
    problem = problem_of_graph(*unrolled(2), max_seconds=0.0, max_bytes=0)
    found = All().choose(problem)
    assert sorted(found) == sorted(problem.candidates)
    assert set(found.values()) == {(first_backward(problem.training),)}
