"""A framework asks MXNet nothing twice, keeps what graphs share, and knows the bytes that are always there."""

from __future__ import annotations

import threading
from typing import Any, Callable

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo.errors import UnsupportedError
from echo.frontend import framework as module
from echo.frontend.framework import MxnetFramework
from echo.frontend.symbols import graph_of, infer_binding
from echo.ir.training_graph import Runner

MODEL = SMALL["resnet50_v2"]()


def framework(runner: str = Runner.EXECUTOR, **changes: Any) -> MxnetFramework:
    shapes = {**MODEL.shapes, **changes}
    binding = infer_binding(MODEL.symbol, shapes, None, MODEL.grad_req())
    return MxnetFramework(graph_of(MODEL.symbol), binding, mx.cpu(), runner)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by each question to MXNet."""
    seen: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        full = getattr(module, name)
        return lambda *args, **more: (seen.append(name), full(*args, **more))[1]

    for name in ("captured_graph", "mxnet_memory_plan", "types_of"):
        monkeypatch.setattr(module, name, counted(name))
    return seen


def test_framework_asks_mxnet_once(asked: list[str]) -> None:
    one = framework()
    for _ in range(2):
        assert one.differentiate() is one.differentiate()
        assert one.types() is one.types()
        assert one.mxnet_memory_plan(one.graph, 16)[0] == one.differentiate().planned_bytes
    assert asked == ["captured_graph", "types_of"], "the training graph says what MXNet's planner would"
    assert one.mxnet_memory_plan(one.graph, 16) == one.fresh_copy().mxnet_memory_plan(one.graph, 16)
    assert asked[2:] == ["mxnet_memory_plan"]
    assert one.fresh_copy().differentiate() is not one.differentiate()
    assert asked.count("captured_graph") == 2


def test_thread_differentiates_a_large_graph_as_it_is(monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    expected = framework().differentiate()
    asked.clear()
    monkeypatch.setattr(module, "LARGE", 2)
    threads: list[str] = []
    original = MxnetFramework._differentiated
    monkeypatch.setattr(
        MxnetFramework,
        "_differentiated",
        lambda one: (threads.append(threading.current_thread().name), original(one))[1],
    )
    one = framework()
    with one.differentiating():
        one.types()
        assert one.differentiate() == expected
    assert one.differentiate() == expected
    assert asked.count("captured_graph") == 1
    assert threads != [threading.current_thread().name]
    with one.differentiating():
        pass
    assert len(threads) == 1, "it is known"


def test_error_of_the_thread_is_raised_where_its_graph_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise mx.MXNetError("no such graph")

    monkeypatch.setattr(module, "LARGE", 2)
    monkeypatch.setattr(module, "captured_graph", refuse)
    one = framework()
    with one.differentiating():
        pass  # its graph is not asked for
    for _ in range(2):
        with one.differentiating(), pytest.raises(mx.MXNetError, match="no such graph"):
            one.differentiate()


def test_another_graph_has_a_framework_of_its_own_that_is_kept() -> None:
    one = framework()
    (last,) = (k for k, node in enumerate(one.graph.nodes) if node.op == "SoftmaxOutput")
    other = one.graph.with_attrs({last: {"__mark__": "1"}})
    assert one.on(one.graph) is one
    assert one.on(other) is one.on(other)
    assert one.on(other).graph == other
    assert one.on(other).key == one.key, "what plans are made for is the original graph"


def test_a_cached_op_is_planned_by_its_own_rule() -> None:
    executor, block = framework(), framework(Runner.DYNAMIC)
    assert block.differentiate().runner == Runner.DYNAMIC
    assert block.adds
    assert not executor.adds
    assert block.mxnet_memory_plan(block.graph, 16)[0] == block.differentiate().planned_bytes
    assert executor.chunks(executor.graph) == executor.chunks(graph_of(MODEL.symbol))
    assert block.chunks(block.graph) is None


def test_session_that_mxnet_would_fuse_again_plans_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As under a CUDA build in which the hook does not find how it asks for variables."""
    monkeypatch.setattr(MxnetFramework, "fuses", True)
    assert framework().hook, "which can be told not to"
    monkeypatch.setattr(module.native, "keeps_unfused", lambda: False)
    with pytest.raises(UnsupportedError, match="MXNET_USE_FUSION=0 lets echo plan"):
        framework()
    shapes = {**MODEL.shapes, "data": (3, *MODEL.shapes["data"][1:]), "softmax_label": (3,)}
    with echo.enable():
        executors = [MODEL.symbol.simple_bind(mx.cpu(), grad_req=MODEL.grad_req(), **shapes) for _ in range(2)]
    assert {type(executor).__name__ for executor in executors} == {"Executor"}
    assert sum("fuse pointwise operators of planned graphs" in text for text in caplog.messages) == 1


@pytest.mark.skipif(mx.runtime.Features().is_enabled("CUDA"), reason="this MXNet knows GPUs")
def test_gpu_without_cuda_raises_unsupported_error() -> None:
    symbol = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8)) * 2
    with pytest.raises(UnsupportedError, match=r"gpu\(0\) needs CUDA, which this MXNet was built without"):
        echo.plan(symbol, ctx=mx.gpu(), grad_req="write", data=(4, 8))
    with pytest.raises((RuntimeError, mx.MXNetError), match="USE_CUDA"):  # as MXNet does
        echo.optimize(symbol).simple_bind(mx.gpu(), data=(4, 8))
