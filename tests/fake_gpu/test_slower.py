"""Operators that may be slower than cuDNN and cuBLAS are timed first. Times are injected, as this device has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

import mxnet as mx
import pytest

import echo
from benchmarks.models import MODELS
from echo.frontend.framework import MxnetFramework
from echo.frontend.measure import race
from echo.frontend.symbols import graph_of, infer_binding, types_of
from echo.passes.fusion_timing import sample
from echo.passes.patterns.apply import find
from echo.passes.patterns.graph_view import View
from echo.planning.planner import Planner
from echo.runtime import bind_plan as runtime_find
from tests.fake_gpu import device
from tests.support.fused_models import EXAMPLES

GPU = mx.gpu(0)
LOSS = "softmax_output"


def planned(times: Mapping[str, float], folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> echo.Plan:
    """The plan of the language model on a device with these times, of which nothing was known before."""
    monkeypatch.setenv("ECHO_CACHE_DIR", str(folder))
    monkeypatch.setattr(runtime_find, "PLANNER", Planner())
    monkeypatch.setattr(MxnetFramework, "race", lambda *_: dict(times))
    model = MODELS["lm"]()
    with device.without_kernels():
        return echo.plan(model.symbol, ctx=GPU, max_overhead=None, **options, **model.shapes)


def test_the_loss_is_fused_where_that_is_not_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = planned({"own": 2e-3, "fused": 1e-3}, tmp_path / "fast", monkeypatch)
    slow = planned({"own": 1e-3, "fused": 2e-3}, tmp_path / "slow", monkeypatch)
    memory = planned({}, tmp_path / "memory", monkeypatch, fuse="memory")
    assert all(LOSS in {name for name, _ in plan.fused} for plan in (fast, memory))
    assert {name for name, _ in slow.fused} == {"lstm_layer"}
    assert any("slower on this device: 2 ms, MXNet's own 1 ms (fuse='memory'" in note for note in slow.remarks)
    assert fast.after.planned == memory.after.planned < slow.after.planned < 120 << 20


@pytest.mark.parametrize("name", ["softmax output", "biased", "dot attention"])  # MXNet's RNN asks cuDNN for sizes
def test_both_forms_run_in_the_process_that_measures(name: str) -> None:
    example = EXAMPLES[name]()
    graph = graph_of(example.symbol)
    binding = infer_binding(example.symbol, example.shapes)
    fusions, _ = find(graph)
    made = sample(View(graph), fusions[0], types_of(graph, binding))
    assert MxnetFramework(graph, binding, GPU).why_no_fusion == ""
    seconds = race({"own": made.own, "fused": made.fused}, made.types, GPU, 60.0)
    assert seconds is not None
    assert set(seconds) == {"own", "fused"}
    assert min(seconds.values()) > 0
