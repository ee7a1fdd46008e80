"""The least stash against brute force."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from echo.policies.data_problem import problem_of_graph
from echo.policies.problem import Problem
from echo.policies.solvers.stash import least_stash
from tests.conftest import calls_of
from tests.data_graphs import random_graph, unrolled


def stash(problem: Problem, recomputed: set[int]) -> int:
    """Bytes that lie in memory between the passes if these nodes run again where they are needed."""
    training = problem.training
    needed = [entry.node for entry in training.backward_readers]
    found: set[int] = set()
    seen: set[int] = set()
    while needed:
        number = needed.pop()
        if number in seen:
            continue
        seen.add(number)
        if number in recomputed:
            needed += [entry.node for entry in training.nodes[number].inputs]
        else:
            found.add(number)
    return sum(training.nodes[number].outputs[0].bytes for number in found)


def test_the_least_stash() -> None:
    smaller = 0
    for seed in range(40):
        problem = problem_of_graph(*random_graph(seed, 9), heavy=seed % 2 == 0)
        found = stash(problem, set(least_stash(problem, 0.0)))
        subsets = itertools.chain.from_iterable(
            itertools.combinations(problem.candidates, count) for count in range(len(problem.candidates) + 1)
        )
        assert found == min(stash(problem, set(subset)) for subset in subsets), f"seed {seed}"
        smaller += found < stash(problem, set())
    assert smaller >= 20


@pytest.mark.slow
def test_work_grows_with_the_graph() -> None:
    work = []
    for steps in (200, 800):
        problem = problem_of_graph(*unrolled(steps), heavy=False)
        work.append(calls_of(partial(least_stash, problem, 0.0))[1])
    assert work[1] < 5 * work[0]
