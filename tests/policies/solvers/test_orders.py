"""Orders of choices, and the bytes beyond which none can be preferred."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echo.estimators.storage_planner import Evaluation
from echo.policies.data_problem import problem_of_graph
from echo.policies.solvers.orders import Limits, Price
from tests.data_graphs import chain

PROBLEM = problem_of_graph(*chain(4))


def value(size: int, seconds: float) -> Evaluation:
    return Evaluation((size,), seconds)


def test_a_price_weighs_seconds_against_bytes() -> None:
    order = Price(10.0)
    assert order.rank(value(100, 2.0)) == (120.0, 2.0)
    assert order.rank(value(110, 1.0)) < order.rank(value(100, 2.0)), "as much altogether, in less time"
    assert order.most_bytes(value(100, 2.0)) == 120


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
    order = Limits(problem)
    assert order.most_bytes(current) == most
    assert order.rank(current) == problem.rank(current)
    assert order.keeps(current) == problem.keeps(current)
    if most is not None:
        assert not order.rank(value(most + 1, 0.0)) < order.rank(current)
