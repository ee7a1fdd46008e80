"""Masks as bits are put in where that lowers what is planned, or keeps a budget; and never cost a plan."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo.passes.refinements import Masked
from echo.passes.rules import RULES
from tests.runtime.test_masks import bits_of, forget_plans, with_begin_state
from tests.support.fused_models import EXAMPLES


def fields(plan: echo.Plan) -> dict[str, Any]:
    return {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.init}


def test_masks_as_bits_lower_planned_bytes() -> None:
    example = EXAMPLES["dropout"]()
    bits = echo.plan(example.symbol, max_overhead=None, **example.shapes)
    numbers = echo.plan(example.symbol, max_overhead=None, fuse=False, **example.shapes)
    assert bits.after.planned < 0.8 * numbers.after.planned


def test_mask_that_lowers_nothing_stays() -> None:
    """Of an input without a gradient: nothing needs the mask afterwards, when most memory is needed."""
    drop = mx.sym.Dropout(mx.sym.var("data"), p=0.5, name="drop")
    plan = echo.plan(mx.sym.tanh(mx.sym.FullyConnected(drop, num_hidden=500)), data=(100, 100))
    assert not plan.fused
    assert "MB planned with masks as bits" in str(plan.why("drop"))
    assert any("MB planned with masks as bits" in note for note in plan.remarks)


def test_within_a_budget_masks_stay_numbers_while_that_fits() -> None:
    example = EXAMPLES["dropout"]()
    ample = echo.plan(example.symbol, memory_budget=1.0, **example.shapes)
    assert not ample.fused
    assert "a mask as bits takes time" in " ".join(ample.remarks)
    tight = echo.plan(example.symbol, max_overhead=None, **example.shapes)
    budget = tight.after.total
    within = echo.plan(example.symbol, memory_budget=budget, max_overhead=None, **example.shapes)
    assert bits_of(within) == {"dropout"}
    assert within.after.total <= budget


def asked(budget: str | None) -> Any:
    return SimpleNamespace(options=SimpleNamespace(memory_budget=budget))


def planned(megabytes: float, overhead: float = 0.0) -> Any:
    return SimpleNamespace(after=SimpleNamespace(chosen=int(megabytes * 10**6)), overhead=overhead)


def test_small_masks_are_not_tried() -> None:
    """Within a budget, nor are large ones, but where recomputation takes more time than they do."""
    unchanged: Any = object()
    small, large = Masked(unchanged, bytes=1000), Masked(unchanged, bytes=2 << 20)
    assert "the masks have 1,000 of 100,000,000 bytes" in small.why_not_tried(asked(None), planned(100))
    assert large.why_not_tried(asked(None), planned(100)) == ""
    assert "takes time" in large.why_not_tried(asked("1GB"), planned(100, RULES.mask_time))
    assert large.why_not_tried(asked("1GB"), planned(100, RULES.mask_time + 0.01)) == ""


def test_masks_have_to_save_bytes_or_within_a_budget_time() -> None:
    unchanged: Any = object()
    masked = Masked(unchanged, bytes=2 * 10**6)
    assert masked.why_not_taken(asked(None), planned(100), planned(98)) == ""
    assert "99.50 MB planned with masks as bits" in masked.why_not_taken(asked(None), planned(100), planned(99.5))
    assert masked.why_not_taken(asked("1GB"), planned(100, 0.2), planned(100, 0.1)) == ""
    assert "+19.0% time with" in masked.why_not_taken(asked("1GB"), planned(100, 0.2), planned(50, 0.19))


def test_a_graph_without_masks_stays_as_it_is() -> None:
    unchanged: Any = object()
    assert Masked(unchanged).rejected(asked(None), None, "no masks") is unchanged


def test_networks_without_gain_get_no_notes() -> None:
    """Of ReLUs that are read anyway, and of a softmax that is too small, only ``plan.missed`` tells."""
    model = SMALL["resnet50_v1"]()
    plan = echo.plan(model.symbol, **model.shapes)
    assert not any("stashed anyway" in note or "too small" in note for note in plan.remarks)


def test_masks_that_cannot_be_planned_cost_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of begin states, without the check for them."""
    monkeypatch.setattr("echo.passes.patterns.graph_view.View._shapes_known_too_late", frozenset())
    forget_plans(monkeypatch)
    example = with_begin_state()
    plan = echo.plan(example.symbol, grad_req="write", **example.shapes)
    assert not plan.fused
    assert plan.after.planned < plan.before.planned
    assert any("masks as bits cannot be planned" in missed.reason for missed in plan.missed)
    forget_plans(monkeypatch)
    with pytest.raises(echo.EchoError, match="_echo_draw_mask"):
        echo.plan(example.symbol, grad_req="write", strict=True, **example.shapes)
