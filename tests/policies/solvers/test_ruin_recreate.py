"""Schedules by ruin and recreate: within what is asked for, never worse than where they begin."""

from __future__ import annotations

import pytest

from echo.errors import NativeError
from echo.policies.data_problem import problem_of_graph
from echo.policies.solvers import ruin_recreate
from echo.policies.solvers.ruin_recreate import RuinRecreate, can_fit
from tests.data_graphs import chain, unrolled


@pytest.mark.parametrize("share", [0.4, 0.7, 1.0])
def test_a_budget_is_kept_in_less_time_than_everything_takes(share: float) -> None:
    graph = chain(40)
    budget = int(share * graph.training.planned_bytes / 2)
    problem = problem_of_graph(*graph, max_bytes=budget)
    found = problem.value(RuinRecreate().choose(problem))
    assert found.bytes <= budget
    assert found.seconds < problem.value(problem.splits(problem.candidates)).seconds


def test_without_a_budget_the_smallest_within_the_bound_on_time() -> None:
    graph = unrolled(4)
    free = problem_of_graph(*graph, heavy=False)
    smallest = free.value(RuinRecreate().choose(free))
    bounded = problem_of_graph(*graph, heavy=False, max_seconds=0.5 * smallest.seconds)
    found = bounded.value(RuinRecreate().choose(bounded))
    assert found.seconds <= 0.5 * smallest.seconds
    assert smallest.bytes <= found.bytes < free.value({}).bytes


def test_it_is_never_worse_than_its_start() -> None:
    problem = problem_of_graph(*chain(40), simulations=1)
    start = RuinRecreate().choose(problem_of_graph(*chain(40)))
    found = RuinRecreate((start,), share=0.0).choose(problem)
    assert problem.rank(problem.value(found)) <= problem.rank(problem.value(start))


def test_what_it_leaves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    once = problem_of_graph(*chain(10), once=True)
    assert not can_fit(once)
    assert RuinRecreate().choose(once) == {}

    def missing(*_: object) -> None:
        raise NativeError("not built")

    monkeypatch.setattr(ruin_recreate, "scheduler_of", missing)
    assert RuinRecreate().choose(problem_of_graph(*chain(10))) == {}
