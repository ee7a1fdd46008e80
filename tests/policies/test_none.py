"""Nothing runs again, whatever the limits."""

from __future__ import annotations

from echo.policies.data_problem import problem_of_graph
from echo.policies.none import RecomputeNone
from tests.support.data_graphs import unrolled


def test_the_stock_graph_stays() -> None:
    problem = problem_of_graph(*unrolled(2), max_bytes=0)
    assert RecomputeNone().choose(problem) == {}
    assert problem.value(RecomputeNone().choose(problem)).seconds == 0
