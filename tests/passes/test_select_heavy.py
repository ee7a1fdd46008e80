"""Compute-heavy operators that run twice without a budget: from the schedule of light operators on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echo.ir.ops import spec
from echo.passes import select as select_pass
from echo.passes.analysis import FindCandidates, Partition
from echo.passes.request import Request
from echo.passes.rules import RULES
from echo.passes.select import Select, Selection
from echo.plans.options import Options
from tests.support.cases import Case, any_case
from tests.support.fake_frontend import FakeFramework
from tests.support.planning import costs_of

CASE = "nmt"


def selected(case: Case, request: Request) -> Selection:
    candidates = FindCandidates().run(request, case.training)
    segments = Partition().run(case.training, candidates)
    return Select().run(request, case.training, candidates, segments, costs_of(case.training))


@pytest.fixture(scope="module")
def case() -> Case:
    return any_case(CASE)


def request_of(case: Case, **options: Any) -> Request:
    return Request(case.graph, Options.of(**options), FakeFramework(case.training, evaluations=600))


def heavy(case: Case, selection: Selection) -> set[int]:
    return {number for number in selection.splits if spec(case.training.nodes[number].op).cost.heavy}


def test_heavy_operators_run_twice_within_the_bound(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select_pass, "RULES", replace(RULES, heavy=0.0))  # at any price
    request = request_of(case, max_overhead=1.0)
    light = selected(case, request)
    deep = selected(case, replace(request, light=light.splits))
    assert not heavy(case, light)
    assert heavy(case, deep)
    assert deep.planned_bytes < light.planned_bytes
    assert deep.seconds <= costs_of(case.training).step_seconds * (1 + 1e-9)


@pytest.mark.parametrize("rounds", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_light_operators_that_would_move_others_are_left_out(
    rounds: int, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to copies of heavy operators, where alone they move none; in the end nothing is recomputed."""
    request = request_of(case, max_overhead=1.0)
    light = selected(case, request)
    refused: list[frozenset[int]] = []

    def moved(training: Any, device: str, recompute: Any, splits: Any) -> frozenset[int]:
        if len(refused) == rounds:
            return frozenset()
        refused.append(frozenset(sorted(light.splits)[:3]))
        return refused[-1]

    monkeypatch.setattr(select_pass, "moved", moved)
    deep = selected(case, replace(request, light=light.splits))
    assert refused
    assert deep.splits == light.splits or not refused[-1] & set(deep.splits)
