"""The hill climb: against brute force on small graphs, within its limits and its effort, the same every time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echo.policies.problem import Problem
from echo.policies.solvers.climb import HillClimb
from echo.policies.warm_start import WarmStart
from tests.conftest import any_case, problem_of


def problem(name: str = "dropout", **limits: Any) -> Problem:
    return problem_of(any_case(name).training, **limits)


def brute_force(made: Problem) -> int:
    subsets = itertools.chain.from_iterable(
        itertools.combinations(made.candidates, count) for count in range(len(made.candidates) + 1)
    )
    return min(made.evaluate(made.choice(list(nodes))).bytes for nodes in subsets)


@pytest.mark.parametrize("name", ["dropout", "two outputs"])
def test_the_smallest_of_small_graphs(name: str) -> None:
    made = problem(name)
    assert len(made.candidates) <= 12
    assert made.evaluate(HillClimb(made).run()).bytes == brute_force(made)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_limits_are_kept(share: float) -> None:
    free = problem("lm")
    everything = free.evaluate(free.choice(list(free.candidates)))
    bound = share * everything.seconds
    made = replace(free, max_seconds=bound)
    found = made.evaluate(HillClimb(made).run())
    assert found.seconds <= bound + 1e-12
    assert found.bytes <= made.evaluate(made.choice()).bytes


@pytest.mark.slow
def test_a_budget_is_met_in_less_time_than_the_smallest_takes() -> None:
    free = problem("lm")
    least, most = free.evaluate(HillClimb(free).run()), free.evaluate(free.choice())
    made = replace(free, max_bytes=(least.bytes + most.bytes) // 2)
    found = made.evaluate(HillClimb(made).run())
    assert found.bytes <= (least.bytes + most.bytes) // 2
    assert found.seconds < least.seconds


def test_effort_is_counted_and_not_timed() -> None:
    made = problem("lm", effort=50 * len(any_case("lm").training.nodes))
    climbs = [HillClimb(made) for _ in range(2)]
    first, second = (climb.run() for climb in climbs)
    assert np.array_equal(first, second)
    assert climbs[0].total <= 50
    assert climbs[0].left >= -10 * len(made.match_ranges)


def test_a_warm_start_is_followed_where_it_keeps_the_limits() -> None:
    made = problem("lm")
    everything = WarmStart.of(made.training, made.candidates, set(made.candidates))
    found = HillClimb(made).run_from(everything)
    assert found is not None
    assert made.evaluate(found).bytes <= made.evaluate(made.choice(list(made.candidates))).bytes
    assert HillClimb(replace(made, max_seconds=0.0)).run_from(everything) is None
