"""Memory on GPU contexts: the plan's bytes are those that MXNet binds, and those that the device sees."""

from __future__ import annotations

import re
from typing import Any, Iterator

import mxnet as mx
import pytest

import echo
from benchmarks.models import MODELS, Model
from echo.frontend import mxnet_settings
from echo.ir.training_graph import Runner
from echo.plans.decisions import RECOMPUTE
from echo.runtime.bind_plan import PLANNER
from tests.fake_gpu import device

GPU = mx.gpu(0)
# Decisions by time depend on the device, and this one's times mean nothing.
WISHES: dict[str, Any] = {"max_overhead": None, "fuse": "memory"}
# README's planned MB on a CPU without a bound on time; a GPU may need 5 % more.
ON_CPU = {"nmt": 77, "nmt_large": 463, "lm": 77, "resnet50_v1": 1578, "resnet50_v2": 1370, "densenet121": 1264,
          "inception_v3": 1583}  # fmt: skip


def _step(model: Model, symbol: mx.sym.Symbol) -> tuple[int, int]:
    """Bytes of MXNet's own planner, to a megabyte, and of the device, for one training step."""
    before = device.idle(GPU)
    device.reset()
    executor = symbol.simple_bind(GPU, grad_req=model.grad_req(), **model.shapes)
    executor.forward(is_train=True)
    executor.backward()
    mx.nd.waitall()
    total = re.search(r"Total (\d+) MB allocated", executor.debug_str())
    assert total is not None
    return int(total[1]) << 20, device.peak() - before


def _planned(model: Model) -> echo.Plan:
    """The plan, which frees all memory of the device, whether it is searched or comes from the disk."""
    idle = device.idle(GPU)
    plan = echo.plan(model.symbol, ctx=GPU, **WISHES, **model.shapes)
    assert device.idle(GPU) <= idle + (16 << 20)
    return plan


@pytest.fixture(autouse=True)
def _without_kernels() -> Iterator[None]:
    with device.without_kernels():
        yield


@pytest.fixture(params=["1", "0"])
def fusion(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """MXNET_USE_FUSION, as the user has it."""
    monkeypatch.setenv("MXNET_USE_FUSION", request.param)
    return str(request.param)


@pytest.mark.every(7)
@pytest.mark.parametrize("name", sorted(ON_CPU))
def test_a_plan_for_a_gpu_needs_what_one_for_a_cpu_does_and_the_device_sees_it(name: str, fusion: str) -> None:
    model = MODELS[name]()
    plan = _planned(model)
    assert plan.after.planned <= 1.05 * (ON_CPU[name] << 20)
    assert ("pointwise operators stay apart" in " ".join(plan.remarks)) == (fusion == "1")

    _, stock_peak = _step(model, model.symbol)
    symbol = echo.optimize(model.symbol, strict=True, **WISHES)
    for _ in range(2):
        bound, peak = _step(model, symbol)
        assert bound >> 20 == plan.after.planned >> 20
        assert stock_peak - peak >= 0.95 * (plan.before.total - plan.after.total)
        PLANNER.forget()  # then the plan comes from the disk, as in another start
        assert _planned(model) == plan


@pytest.mark.parametrize("size", [100, 5000, 1 << 20, (1 << 20) + 4, 2 << 20, 3 << 20, (9 << 20) + 4, 17 << 20])
def test_the_pool_hands_out_blocks_as_plans_assume(size: int) -> None:
    pool = mxnet_settings.pool("gpu", Runner.DYNAMIC)
    assert pool is not None
    before = device.idle(GPU)
    array = mx.nd.zeros((size // 4,), ctx=GPU)
    mx.nd.waitall()
    assert device.used() - before == pool.handed_out(size)
    del array


@pytest.mark.parametrize("name", ["resnet50_v2", "densenet121"])
def test_batch_norm_runs_again_without_touching_its_statistics(name: str) -> None:
    model = MODELS[name]()
    plan = echo.plan(model.symbol, ctx=GPU, max_overhead=None, **model.shapes)
    device.reset()
    _step(model, model.symbol)
    normal = device.count("cudnnBatchNormalizationForwardTraining mode 2 factor 0.1")
    assert normal == device.count("cudnnBatchNormalizationForwardTraining") > 0
    device.reset()
    _step(model, echo.optimize(model.symbol, max_overhead=None, strict=True))
    again = sum(one.action == RECOMPUTE and one.op == "BatchNorm" for one in plan.decisions)
    assert device.count("cudnnBatchNormalizationForwardTraining mode 2 factor 0.1") == normal
    clones = device.count("cudnnBatchNormalizationForwardTraining") - normal
    assert clones == device.count("factor 0 ") >= again > 0
