"""Masks as bits are put in where that lowers what is planned, or keeps a budget; and never cost a plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
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
