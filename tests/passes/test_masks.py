"""Masks as bits are put in where that lowers what is planned, or keeps a budget; and never cost a plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo import pipeline
from echo.ir.fused_operators import PREFIX
from tests.fused_models import EXAMPLES
from tests.runtime.test_masks import bits_of, forget_plans, with_begin_state


def fields(plan: echo.Plan) -> dict[str, Any]:
    return {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.init}


def test_less_is_planned() -> None:
    example = EXAMPLES["dropout"]()
    bits = echo.plan(example.symbol, max_overhead=None, **example.shapes)
    numbers = echo.plan(example.symbol, max_overhead=None, fuse=False, **example.shapes)
    assert bits.after.planned < 0.8 * numbers.after.planned


def test_nothing_is_put_in_that_lowers_nothing() -> None:
    """Of an input without a gradient: nobody needs the mask afterwards."""
    drop = mx.sym.Dropout(mx.sym.var("data"), p=0.5, name="drop")
    plan = echo.plan(mx.sym.FullyConnected(drop, num_hidden=10), data=(100, 100))
    assert not plan.fused
    assert "MB planned with masks as bits" in str(plan.why("drop"))
    assert any("MB planned with masks as bits" in note for note in plan.notes)


def test_masks_that_are_a_small_part_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph is planned, not two, and the user is not told unless he asks."""
    x = mx.sym.Dropout(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64), name="drop")
    for _ in range(6):
        x = mx.sym.softmax(mx.sym.FullyConnected(x, num_hidden=4096)) * 2
    full, planned = pipeline.best_plan, []
    monkeypatch.setattr(pipeline, "best_plan", lambda request: planned.append(request) or full(request))
    forget_plans(monkeypatch)
    plan = echo.plan(x, data=(150, 64))
    assert len(planned) == 1
    assert "too small: the masks have 38,400 of " in str(plan.why("drop:0"))
    assert not any("too small" in note for note in plan.notes)


def test_within_a_budget_masks_stay_numbers_while_that_fits() -> None:
    example = EXAMPLES["dropout"]()
    ample = echo.plan(example.symbol, memory_budget=1.0, **example.shapes)
    assert not ample.fused
    assert "a mask as bits takes time" in " ".join(ample.notes)
    tight = echo.plan(example.symbol, max_overhead=None, **example.shapes)
    budget = tight.after.total
    within = echo.plan(example.symbol, memory_budget=budget, max_overhead=None, **example.shapes)
    assert bits_of(within) == {"dropout"}
    assert within.after.total <= budget


@pytest.mark.parametrize(("before", "after", "bits"), [(0.5, 0.1, True), (0.5, 0.49, False)])
def test_within_a_budget_bits_replace_slower_operators(
    monkeypatch: pytest.MonkeyPatch, before: float, after: float, bits: bool
) -> None:
    """Plans within the budget, of which the one without bits needs half a step of recomputation."""
    full = pipeline.best_plan

    def best(request: Any) -> Any:
        found = full(request)
        masked = any(node.op == PREFIX + "apply_mask" for node in request.graph.nodes)
        seconds = (after if masked else before) * found.plan.step_seconds
        return found._replace(plan=type(found.plan)(**{**fields(found.plan), "overhead_seconds": seconds}))

    forget_plans(monkeypatch)
    monkeypatch.setattr(pipeline, "best_plan", best)
    example = EXAMPLES["dropout"]()
    plan = echo.plan(example.symbol, memory_budget=1.0, max_overhead=None, **example.shapes)
    assert bits_of(plan) == ({"dropout"} if bits else set())
    assert bits or "nothing to gain: +49.0% time with masks as bits, +50.0% without" in " ".join(plan.notes)


def test_masks_never_cost_the_other_fusions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a plan with bits needs more than the user's graph, one without them is made."""
    full = pipeline.best_plan

    def best(request: Any) -> Any:
        found = full(request)
        if any(node.op == PREFIX + "apply_mask" for node in request.graph.nodes):
            after = found.plan.after
            more = type(after)(1 << 40, after.live_peak, after.static, after.at_peak, after.layers)
            return found._replace(plan=type(found.plan)(**{**fields(found.plan), "after": more}))
        return found

    data = mx.sym.Dropout(mx.sym.var("data"), p=0.3)
    cell = mx.rnn.LSTMCell(64, prefix="cell_")
    outputs, _ = cell.unroll(9, data, layout="NTC", merge_outputs=True)
    symbol = mx.sym.Dropout(outputs, p=0.3, name="drop")
    assert bits_of(echo.plan(symbol, data=(32, 9, 64), grad_req="write")) == {"lstm_layer", "dropout"}
    forget_plans(monkeypatch)
    monkeypatch.setattr(pipeline, "best_plan", best)
    plan = echo.plan(symbol, data=(32, 9, 64), grad_req="write")
    assert bits_of(plan) == {"lstm_layer"}
    assert "nothing to gain: 1048576.00 MB planned with masks as bits" in str(plan.why("drop"))


def test_networks_without_gain_get_no_notes() -> None:
    """Of ReLUs that are read anyway, and of a softmax that is too small, only ``plan.missed`` tells."""
    model = SMALL["resnet50_v1"]()
    plan = echo.plan(model.symbol, **model.shapes)
    assert not any("stashed anyway" in note or "too small" in note for note in plan.notes)


def test_masks_that_cannot_be_planned_cost_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of begin states, without the check for them."""
    monkeypatch.setattr("echo.passes.patterns.graph_view.View._late", frozenset())
    forget_plans(monkeypatch)
    example = with_begin_state()
    plan = echo.plan(example.symbol, grad_req="write", **example.shapes)
    assert not plan.fused
    assert plan.after.planned < plan.before.planned
    assert any("masks as bits cannot be planned" in missed.reason for missed in plan.missed)
    forget_plans(monkeypatch)
    with pytest.raises(echo.EchoError, match="_echo_pack_mask"):
        echo.plan(example.symbol, grad_req="write", strict=True, **example.shapes)
