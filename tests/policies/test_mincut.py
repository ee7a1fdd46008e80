"""The least stash within a bound on time."""

from __future__ import annotations

from echo.policies.data_problem import problem_of_graph
from echo.policies.mincut import Mincut
from echo.policies.solvers.min_cut import least_stash
from tests.support.data_graphs import unrolled


def test_a_price_buys_seconds() -> None:
    problem = problem_of_graph(*unrolled(10), heavy=False)
    free, dear, priceless = (problem.splits(least_stash(problem, price)) for price in (0.0, 1.05e8, 1e15))
    seconds = [problem.value(splits).seconds for splits in (free, dear, priceless)]
    assert seconds[0] > seconds[1] >= seconds[2] == 0
    bound = 0.5 * seconds[0]
    limited = problem_of_graph(*unrolled(10), heavy=False, max_seconds=bound)
    assert limited.value(Mincut().choose(limited)).seconds <= bound
