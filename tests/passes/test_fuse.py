"""Fusing is the first stage: it never makes a plan worse, and never costs a plan."""

from __future__ import annotations

from typing import Any

import pytest

import echo
from benchmarks.models import SMALL
from echo.ir.graph import PREFIX
from echo.passes.request import Request
from echo.planning.planner import Planner
from echo.runtime import bind_plan

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
    (note,) = (note for note in found.remarks if note.startswith("fused: "))
    counts = [int(text.split(" x ")[0]) for text in note[len("fused: ") :].partition(";")[0].split(", ")]
    assert sum(counts) == len(found.fused)


def drawn(found: echo.Plan) -> int:
    assert found.before.workspaces == 0
    return found.after.workspaces


def test_the_largest_workspace_counts_in_plans_and_budgets() -> None:
    layers, cells = plan(), plan(keep="encoder*")
    assert {name for name, _ in layers.fused} > {"lstm_layer", "mlp_score"}
    assert drawn(layers) > drawn(cells) > 0 == drawn(plan(fuse=False))
    held = sum(layers.after.static.values())
    with pytest.raises(echo.BudgetError) as caught:
        plan(memory_budget=held)
    assert caught.value.reachable > held, "workspaces are no room for maps"


@pytest.mark.parametrize(
    ("most", "refused", "taken"),
    [(200_000, {"lstm_layer"}, {"lstm_cell", "mlp_score"}), (50_000, {"lstm_layer", "mlp_score"}, {"lstm_cell"})],
)
def test_an_operator_with_a_workspace_that_mxnet_does_not_give_is_not_fused(
    most: int, refused: set[str], taken: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echo.passes.fuse.MOST_BYTES", most)
    monkeypatch.setattr("echo.planning.plan_cache.load", lambda *_: None)
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    found = plan()
    fused = {name for name, _ in found.fused}
    assert fused.isdisjoint(refused)
    assert fused > taken
    assert found.after.workspaces <= most
    missed = [miss for miss in found.missed if "bytes: MXNet gives an operator at most" in miss.reason]
    assert {miss.pattern for miss in missed} == refused
    assert sum(name == "lstm_cell" for name, _ in found.fused) == 18, "the steps of a layer are fused one by one"
    named = [note for note in found.remarks if "a workspace of " in note]
    assert named
    assert any(miss.name in note for note in named for miss in missed)
