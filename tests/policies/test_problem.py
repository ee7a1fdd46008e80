"""What a policy may ask of a problem: choices, values, limits and their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echo.estimators.storage_planner import Evaluation
from echo.ir.graph import Entry
from echo.ir.training_graph import ASSIGNED, STATIC
from echo.policies.data_problem import problem_of_graph
from echo.policies.problem import Problem
from tests.conftest import any_case, problem_of
from tests.data_graphs import chain


def problem(**changes: Any) -> Problem:
    return replace(problem_of_graph(*chain(4)), **changes)


def test_a_choice_has_what_is_forced_and_what_is_chosen() -> None:
    made = problem(forced=frozenset({Entry(0)}))
    assert made.choice([2]).nonzero()[0].tolist() == [0, 2]
    assert made.choice().nonzero()[0].tolist() == [0]
    assert made.chosen(made.choice([2, 3])) == {node: (5,) for node in (0, 2, 3)}


def test_all_outputs_of_a_candidate_are_chosen_together() -> None:
    made = problem_of(any_case("slices").training)
    node = next(number for number, entries in made.candidates.items() if len(entries) > 1)
    ids = [made.training.entry_id(entry) for entry in made.candidates[node]]
    assert made.entry_ids(node) == ids
    assert made.choice([node]).nonzero()[0].tolist() == ids


def test_a_value_is_that_of_all_ways_to_plan_storage() -> None:
    made = problem_of(any_case("dropout").training, assigns=True)
    splits = made.splits(made.candidates)
    assert made.all_ranges == (*made.match_ranges, ASSIGNED)
    exact = made.evaluator.evaluate(made.choice(list(splits)), made.all_ranges, None, splits)
    assert made.value(splits) == exact
    assert len(made.value(splits).totals) == len(made.match_ranges) + 1
    assert made.evaluate(made.choice(list(splits))).totals == exact.totals[:-1]
    assert replace(made, assigned_only=True).all_ranges == (ASSIGNED,)
    assert replace(made, assigns=False).all_ranges == made.match_ranges


@pytest.mark.parametrize(
    ("limits", "bytes_", "seconds", "rank", "keeps"),
    [
        ({}, 10, 2.0, (0.0, 10.0, 2.0), True),
        ({"max_seconds": 1.5}, 10, 2.0, (0.5, 10.0, 2.0), False),
        ({"max_seconds": 2.0}, 10, 2.0, (0.0, 10.0, 2.0), True),
        ({"max_bytes": 7}, 10, 2.0, (3.0, 0.0, 2.0), False),
        ({"max_bytes": 10}, 10, 2.0, (0.0, 0.0, 2.0), True),
        ({"max_bytes": 10, "max_seconds": 1.0}, 10, 2.0, (0.0, 1.0, 2.0), False),
    ],
)
def test_limits_come_first(
    limits: dict[str, Any], bytes_: int, seconds: float, rank: tuple[float, ...], keeps: bool
) -> None:
    made, value = problem(**limits), Evaluation((bytes_ + 5, bytes_), seconds)
    assert made.rank(value) == rank
    assert made.keeps(value) == keeps


def test_who_may_split() -> None:
    assert problem().may_split
    assert not problem(once=True).may_split
    assert not problem(training=replace(chain(4).training, runner=STATIC)).may_split


def test_choices_are_fresh() -> None:
    made = problem()
    made.choice()[:] = 1
    assert not np.any(made.choice())
