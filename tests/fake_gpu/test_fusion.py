"""MXNet's fusion of pointwise operators: off in what echo planned, as it was in all else, whatever the runner."""

from __future__ import annotations

import os
import re
import threading

import mxnet as mx
import pytest

import echo
from echo import native
from tests.fake_gpu import device

GPU = mx.gpu(0)
SHAPES = {"data": (64, 96)}


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MXNET_USE_FUSION", raising=False)  # which is on by default


def chain(layers: int = 3) -> mx.sym.Symbol:
    """Layers of which every map but the product is cheap to recompute."""
    x = mx.sym.var("data")
    for layer in range(layers):
        x = mx.sym.tanh(mx.sym.FullyConnected(x, num_hidden=96, name=f"fc{layer}")) * 2
    return mx.sym.sum(x)


def fused_operators(executor: mx.executor.Executor) -> int:
    return len(re.findall(r"^Op:_FusedOp,", executor.debug_str(), re.MULTILINE))


def test_a_planned_graph_has_no_fused_operator_and_the_users_own_has() -> None:
    assert fused_operators(chain().simple_bind(GPU, **SHAPES)) > 0
    planned = echo.optimize(chain(), strict=True).simple_bind(GPU, **SHAPES)
    assert fused_operators(planned) == 0
    assert planned.outputs[0].shape == (1,)
    assert fused_operators(chain().simple_bind(GPU, **SHAPES)) > 0, "a later bind of the user's is as before"
    assert "MXNET_USE_FUSION" not in os.environ


@pytest.mark.parametrize(("text", "fuses"), [("", True), ("1", True), ("true", True), ("0", False), ("false", False)])
def test_the_variable_means_what_it_means_to_mxnet(text: str, fuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_USE_FUSION", text)
    assert (fused_operators(chain().simple_bind(GPU, **SHAPES)) > 0) == fuses
    plan = echo.plan(chain(), ctx=GPU, **SHAPES)
    assert ("pointwise operators stay apart" in " ".join(plan.remarks)) == fuses
    assert fused_operators(echo.optimize(chain(), strict=True).simple_bind(GPU, **SHAPES)) == 0


def test_a_plan_is_not_one_for_the_other_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = echo.plan(chain(), ctx=GPU, **SHAPES)
    assert echo.plan(chain(), ctx=GPU, plan=plan, **SHAPES) == plan
    monkeypatch.setenv("MXNET_USE_FUSION", "0")
    with pytest.raises(echo.PlanError, match="MXNET_USE_FUSION"):
        echo.plan(chain(), ctx=GPU, plan=plan, **SHAPES)
    assert echo.plan(chain(), ctx=GPU, **SHAPES).fingerprint != plan.fingerprint


def test_a_planned_graph_stays_without_when_it_is_reshaped() -> None:
    planned = echo.optimize(chain(), strict=True).simple_bind(GPU, **SHAPES)
    assert fused_operators(planned.reshape(partial_shaping=True, allow_up_sizing=True, data=(32, 96))) == 0


def test_graph_without_gain_is_fused_by_mxnet() -> None:
    symbol = mx.sym.sum(mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=96)) * 2)
    assert echo.plan(symbol, ctx=GPU, **SHAPES).changes_nothing
    assert fused_operators(echo.optimize(symbol, strict=True).simple_bind(GPU, **SHAPES)) > 0


def test_unfused_leaves_binds_of_other_threads_fused() -> None:
    seen: list[int] = []
    with native.unfused():
        thread = threading.Thread(target=lambda: seen.append(fused_operators(chain().simple_bind(GPU, **SHAPES))))
        thread.start()
        thread.join()
        assert fused_operators(chain().simple_bind(GPU, **SHAPES)) == 0
    assert seen[0] > 0


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}])
@pytest.mark.parametrize("optimizes", [False, True])
def test_a_planned_block_has_no_fused_operator_in_training_or_prediction(
    flags: dict[str, bool], optimizes: bool
) -> None:
    scale = 2.0 + len(flags) + 10 * optimizes  # MXNet compiles equal code once a process
    block = mx.gluon.nn.HybridSequential()
    for _ in range(3):
        block.add(mx.gluon.nn.Dense(96, in_units=96), mx.gluon.nn.HybridLambda(lambda F, x: F.tanh(x) * scale))
    block.initialize(ctx=GPU)
    block.hybridize(inline_limit=0, **flags)
    if optimizes:
        block = echo.optimize(block, strict=True)
    data = mx.nd.zeros((64, 96), ctx=GPU)
    device.reset()
    for _ in range(2):
        with mx.autograd.record():
            losses = [block(data), block(data)]  # two states of a CachedOp at once
        mx.autograd.backward(losses)
        block(data).wait_to_read()
    mx.nd.waitall()
    assert (device.count("nvrtcCompileProgram") == 0) == optimizes
