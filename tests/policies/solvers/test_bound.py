"""No schedule needs less than the bound: held against brute force, and against the searches on real graphs."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest

from echo.estimators.scheduler import Scheduler
from echo.policies.data_problem import problem_of_graph
from echo.policies.search import Search
from echo.policies.solvers.bound import least_bytes
from tests.conftest import any_case, calls_of, problem_of
from tests.data_graphs import ILP_NAMES, chain, ilp_graph, random_graph, unrolled
from tests.policies.test_certificate import spaces


def test_no_schedule_of_a_small_graph_needs_less() -> None:
    """Nor is it far below, though it does not count what a node works on while it runs, which here is much."""
    shares = []
    for seed in range(80):
        problem = problem_of_graph(*random_graph(seed, random.Random(seed).randint(3, 8)), once=True)
        some = dict(random.Random(seed).sample(sorted(problem.candidates.items()), len(problem.candidates) // 2 + 1))
        for limited in (problem, replace(problem, candidates=some)):
            scheduler = Scheduler(limited.training, limited.overhead.seconds)
            least = min(scheduler.simulate(splits).bytes for splits in spaces(limited))
            assert least_bytes(limited) <= least, f"seed {seed}"
            shares.append(least_bytes(limited) / max(least, 1))
    assert sum(shares) / len(shares) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nmt", "lm", "resnet50_v2", "dropout", "slices"])
def test_no_plan_of_light_operators_needs_less(name: str) -> None:
    """MXNet's own graphs: work in place, views, memory that is not the planner's."""
    problem = problem_of(any_case(name).training, assigns=True)
    least = problem.value(Search().choose(problem)).bytes
    assert 0 < least_bytes(problem) <= least


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ILP_NAMES)
def test_no_schedule_of_a_real_graph_needs_less(name: str) -> None:
    problem = problem_of_graph(*ilp_graph(name), heavy=False, simulations=20_000)
    least = problem.value(Search().choose(problem)).bytes
    assert 0.5 * least < least_bytes(problem) <= least


def test_what_stays_is_told_apart_from_what_may_go() -> None:
    length = 200
    training, seconds = chain(length)
    problem = problem_of_graph(training, seconds)
    assert least_bytes(problem) <= 4
    assert least_bytes(replace(problem, candidates={})) >= length


@pytest.mark.slow
def test_work_grows_with_the_graph() -> None:
    work = []
    for steps in (100, 400, 1600):
        problem = problem_of_graph(*unrolled(steps), heavy=False)
        least, calls = calls_of(partial(least_bytes, problem))
        work.append(calls)
        assert least > 4096 * steps
    assert work[2] < 5 * work[1]
