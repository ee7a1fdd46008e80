"""Speech models: what MXNet plans for them, and what is left with whole layers."""

from __future__ import annotations

from collections import Counter

import pytest

import echo
from benchmarks.models import planned_mb
from benchmarks.speech_models import deepspeech


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "gluon", "stock", "bar"), [("gru", False, 303, 95), ("gru", True, 303, 95), ("lstm", False, 408, 92)]
)
def test_planned_memory(mode: str, gluon: bool, stock: int, bar: int) -> None:
    model = deepspeech(mode, gluon)
    assert abs(planned_mb(model) - stock) <= 5
    plan = echo.plan(model.symbol, grad_req=model.grad_req(), max_overhead=None, max_planning=None, **model.shapes)
    assert Counter(name for name, _ in plan.fused) == {f"{mode}_layer": 6, "batch_norm_relu": 2}
    assert plan.after.planned <= bar * 2**20
