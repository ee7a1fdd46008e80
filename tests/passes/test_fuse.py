"""Fusing is the first stage: it never makes a plan worse, and never costs a plan."""

from __future__ import annotations

from typing import Any

import pytest

import echo
from benchmarks.models import SMALL
from echo.ir.fused_operators import PREFIX
from echo.passes.request import Request

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


def test_notes_count_what_is_fused() -> None:
    found = plan()
    (note,) = (note for note in found.notes if note.startswith("fused: "))
    counts = [int(text.split(" x ")[0]) for text in note[len("fused: ") :].partition(";")[0].split(", ")]
    assert sum(counts) == len(found.fused)
