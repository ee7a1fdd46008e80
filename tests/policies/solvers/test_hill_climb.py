"""Orders of choices, and the bytes beyond which none can be preferred."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echo.estimators.storage_planner import Evaluation
from echo.policies.data_graph import problem_of_graph
from echo.policies.problem import Problem, WarmStart
from echo.policies.solvers.hill_climb import HillClimb, Price
from tests.support.cases import any_case
from tests.support.data_graphs import chain
from tests.support.planning import problem_of

PROBLEM = problem_of_graph(*chain(4))


def value(size: int, seconds: float) -> Evaluation:
    return Evaluation((size,), seconds)


def test_a_price_weighs_seconds_against_bytes() -> None:
    objective = Price(10.0)
    assert objective.rank(value(100, 2.0)) == (120.0, 2.0)
    assert objective.rank(value(110, 1.0)) < objective.rank(value(100, 2.0)), "as much altogether, in less time"
    assert objective.most_bytes(value(100, 2.0)) == 120


@pytest.mark.parametrize(
    ("limits", "current", "most"),
    [
        ({}, value(100, 2.0), 100),
        ({"max_seconds": 3.0}, value(100, 2.0), 100),
        ({"max_seconds": 1.0}, value(100, 2.0), None),
        ({"max_bytes": 90}, value(100, 2.0), 100),
        ({"max_bytes": 150}, value(100, 2.0), 150),
    ],
)
def test_limits_say_how_many_bytes_can_be_preferred(limits: dict[str, Any], current: Evaluation, most: int) -> None:
    problem = replace(PROBLEM, **limits)
    assert problem.most_bytes(current) == most
    if most is not None:
        assert not problem.rank(value(most + 1, 0.0)) < problem.rank(current)


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


@pytest.mark.every(3)
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
