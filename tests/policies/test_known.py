"""Schedules that are remembered for a graph, and for no other."""

from __future__ import annotations

from dataclasses import replace

from echo.policies import known as module
from echo.policies.known import Known
from tests.conftest import any_case, problem_of


def test_schedules_come_back_for_the_same_graph_alone() -> None:
    known, case, other = Known(), any_case("dropout"), any_case("lm")
    problem = problem_of(case.training)
    node = next(iter(problem.candidates))
    splits = dict(problem.splits([node]))
    known.add(case.training, splits)
    known.add(case.training, splits)
    assert known.of(problem) == [splits]
    assert known.of(problem_of(other.training)) == []
    assert known.of(replace(problem, candidates={})) == [], "the user keeps that node now"


def test_other_sizes_are_another_graph() -> None:
    known, case = Known(), any_case("dropout")
    known.add(case.training, {})
    node = case.training.nodes[-1]
    types = tuple(replace(each, shape=(*each.shape, 2)) for each in node.outputs)
    larger = replace(case.training, nodes=(*case.training.nodes[:-1], replace(node, outputs=types)))
    assert known.of(problem_of(case.training)) == [{}]
    assert known.of(problem_of(larger)) == []


def test_the_oldest_go_where_there_are_too_many(monkeypatch: object) -> None:
    known, case = Known(), any_case("dropout")
    problem = problem_of(case.training)
    backward = len(case.training.nodes) - 1
    node = next(iter(problem.candidates))
    schedules = [{node: (backward - at,)} for at in range(module._MOST_SCHEDULES + 2)]
    for schedule in schedules:
        known.add(case.training, schedule)
    assert known.of(problem) == schedules[2:]
