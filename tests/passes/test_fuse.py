"""Fusing is the first stage: it never makes a plan worse, and never costs a plan."""

from __future__ import annotations

from typing import Any

import pytest

import echo
from benchmarks.models import SMALL
from echo import pipeline
from echo.errors import BudgetError
from echo.ir.fused_operators import PREFIX
from echo.passes.request import Request
from echo.passes.trial import Planned
from echo.planning.service import Planner
from echo.runtime import find

MODEL = SMALL["nmt"]()
pytestmark = pytest.mark.usefixtures("cheap_planning")


def plan(**options: Any) -> echo.Plan:
    return echo.plan(MODEL.symbol, **options, **MODEL.shapes)


def is_fused(request: Request) -> bool:
    return any(node.op.startswith(PREFIX) for node in request.graph.nodes)


def test_a_budget_means_what_the_users_own_graph_holds() -> None:
    fused = plan(memory_budget=0.9)
    assert fused.fused
    assert fused.before.total == plan(fuse=False).before.total
    assert fused.after.total <= 0.9 * fused.before.total


@pytest.mark.parametrize("reachable", [1 << 40, 1])
def test_a_budget_that_fused_operators_miss_may_be_met_without(monkeypatch: pytest.MonkeyPatch, reachable: int) -> None:
    full = pipeline.best_plan

    def best(request: Request) -> Planned:
        if is_fused(request):
            raise BudgetError(1, reachable, "everything")
        return full(request)

    monkeypatch.setattr(pipeline, "best_plan", best)
    assert not plan(memory_budget="1GB").fused
    with pytest.raises(BudgetError) as caught:
        plan(memory_budget=1000)
    assert (caught.value.reachable == 1) == (reachable == 1), "the least of both"
    assert caught.value.reachable < 1 << 40


def test_fused_operators_that_need_more_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    full = pipeline.stock_memory

    def nearly_nothing(request: Request, fused: Any) -> Any:
        before = full(request, fused)
        return type(before)(1, before.live_peak, {}, before.at_peak, before.layers)

    assert plan(policy="none").fused
    monkeypatch.setattr(find, "PLANNER", Planner())
    monkeypatch.setattr("echo.planning.store.load", lambda *_: None)
    monkeypatch.setattr(pipeline, "stock_memory", nearly_nothing)
    assert not plan(policy="none").fused


def test_notes_count_what_is_fused() -> None:
    found = plan()
    (note,) = (note for note in found.notes if note.startswith("fused: "))
    counts = [int(text.split(" x ")[0]) for text in note[len("fused: ") :].partition(";")[0].split(", ")]
    assert sum(counts) == len(found.fused)
