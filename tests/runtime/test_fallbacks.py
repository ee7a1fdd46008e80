"""Never less than before: what fails with fused operators is done without them, then without a plan, one line each."""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import replace
from typing import Any, Callable, Mapping

import mxnet as mx
import numpy as np
import pytest
from mxnet.symbol import Symbol

import echo
from echo.ir.graph import PREFIX, Graph
from echo.passes import choose
from echo.passes.analysis import Differentiate
from echo.passes.patterns import apply
from echo.passes.refinements import BatchProducts, PackMasks
from echo.passes.request import Request
from echo.passes.rewrite import Confirm
from echo.passes.select import Select
from echo.planning.planner import Planner
from echo.runtime import bind as planned_bind
from echo.runtime import bind_plan, cached_op
from echo.runtime.bind import Rebinder
from tests.support.refusing import refusing_op

pytestmark = pytest.mark.usefixtures("nothing_remembered", "cheap_planning")
SIZE, STEPS, BATCH = 16, 6, 8
Patch = pytest.MonkeyPatch


class Surprise(RuntimeError):
    """An unexpected error."""


def model() -> Symbol:
    """Cells that are fed what they put out, so that there are no layers; attention-like maps worth recomputing."""
    cell, h = mx.rnn.LSTMCell(SIZE, prefix="cell_"), mx.sym.var("data")
    states, outputs = [mx.sym.var("h0"), mx.sym.var("c0")], []
    for _ in range(STEPS):
        h, states = cell(mx.sym.tanh(mx.sym.exp(mx.sym.sigmoid(h))), states)
        outputs.append(h)
    return mx.sym.Concat(*outputs, dim=1)


SHAPES = dict.fromkeys(("data", "h0", "c0"), (BATCH, SIZE))


def fused(graph: Graph) -> bool:
    return any(node.op.startswith(PREFIX) for node in graph.nodes)


# Faults ------------------------------------------------------------------------------------------------------------


def failing_pass(stage: type[Any]) -> Callable[[Patch], None]:
    """The pass fails on graphs with fused operators."""

    def inject(patch: Patch) -> None:
        run = stage.run

        def fail(self: Any, request: Request, *values: Any) -> Any:
            if fused(request.graph):
                raise Surprise(stage.name)
            return run(self, request, *values)

        patch.setattr(stage, "run", fail)

    return inject


def failing(target: Any, name: str) -> Callable[[Patch], None]:
    def fail(*_: Any, **__: Any) -> Any:
        raise Surprise(name)

    return lambda patch: patch.setattr(target, name, fail)


def wrong_arguments(patch: Patch) -> None:
    """The graph with fused operators has the first two arguments exchanged, as MXNet would come to them."""
    patch.setattr(apply, "ordered", lambda made, original: made)
    real = apply.PATTERNS["lstm_cell"].match

    def turned(view: Any, number: int) -> Any:
        found = real(view, number)
        if not isinstance(found, apply.Fusion):
            return found
        (node,) = found.nodes
        late = tuple(at for at in view.graph.arg_nodes if view.graph.nodes[at].name == "c0")
        first = mx.sym and node._with(inputs=node.inputs[::-1], control_deps=late)
        return apply.Fusion(**{**vars(found), "nodes": (first,)})

    patch.setattr(
        apply, "PATTERNS", {**apply.PATTERNS, "lstm_cell": replace(apply.PATTERNS["lstm_cell"], match=turned)}
    )


PLANNING: Mapping[str, Callable[[Patch], None]] = {
    "pattern match": failing(apply, "_match"),
    "substitution": failing(apply, "applied"),
    "shapes and types": failing(apply, "fusion_blocker"),
    "wrong arguments": wrong_arguments,
    "memory of the original graph": failing(choose, "memory_before"),
    "differentiate": failing_pass(Differentiate),
    "policy": failing_pass(Select),
    "confirm": failing_pass(Confirm),
}


def values(symbol: Symbol) -> dict[str, Any]:
    drawn = np.random.RandomState(2)
    shapes, _, _ = symbol.infer_shape(**SHAPES)
    return {name: mx.nd.array(drawn.normal(0, 0.4, shape)) for name, shape in zip(symbol.list_arguments(), shapes)}


def step(executor: mx.executor.Executor) -> list[Any]:
    for name, array in values(model()).items():
        executor.arg_dict[name][:] = array
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones(out.shape) for out in executor.outputs])
    return [array.asnumpy() for array in (*executor.outputs, *executor.grad_arrays)]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


STOCK = step(model().simple_bind(mx.cpu(), **SHAPES))


def check_unfused(found: list[Any], caplog: pytest.LogCaptureFixture, text: str) -> None:
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(found, STOCK))
    told = lines(caplog)
    assert any(text in line for line in told), told
    assert all("\n" not in line and "please report it" in line for line in told)
    assert len(told) <= 3, "one for fused layers, one for fused cells, one for masks"
    assert "recomputed" in caplog.text


# Planning ----------------------------------------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("transparent", [False, True])
@pytest.mark.parametrize("fault", PLANNING)
def test_planning_goes_on_without_fused_operators(
    fault: str, transparent: bool, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    PLANNING[fault](monkeypatch)
    with caplog.at_level(logging.DEBUG, "echo"):
        if transparent:
            with echo.enable(max_overhead=None):
                executor = model().simple_bind(mx.cpu(), **SHAPES)
        else:
            optimized = echo.optimize(model(), max_overhead=None)
            executor = optimized.simple_bind(mx.cpu(), **SHAPES)
            plan = optimized.plans[-1]
            assert not plan.fused
            assert plan.recomputed
            assert plan.failed
        check_unfused(step(executor), caplog, "planned without fused operators")


@pytest.mark.parametrize("transparent", [False, True])
@pytest.mark.parametrize("fault", PLANNING)
def test_strict_bind_raises_the_planning_error(fault: str, transparent: bool, monkeypatch: Patch) -> None:
    PLANNING[fault](monkeypatch)
    if transparent:
        echo.enable(max_overhead=None, strict=True)
    symbol = model() if transparent else echo.optimize(model(), max_overhead=None, strict=True)
    with pytest.raises((echo.EchoError, Surprise)):
        symbol.simple_bind(mx.cpu(), **SHAPES)


@pytest.mark.parametrize("transparent", [False, True])
def test_graph_that_cannot_be_planned_runs_as_it_is(
    transparent: bool, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(Select, "run")(monkeypatch)
    if transparent:
        with echo.enable(max_overhead=None):
            executor = model().simple_bind(mx.cpu(), **SHAPES)
    else:
        executor = echo.optimize(model(), max_overhead=None).simple_bind(mx.cpu(), **SHAPES)
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(step(executor), STOCK))
    (line,) = lines(caplog)
    assert "bound without a plan" in line


@pytest.mark.parametrize("stage", [PackMasks, BatchProducts])
def test_masks_and_layouts_cost_no_plan(stage: type[Any], monkeypatch: Patch) -> None:
    failing(stage, "run")(monkeypatch)
    plan = echo.plan(model(), max_overhead=None, **SHAPES)
    assert plan.fused
    assert len(plan.failed) == 1
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    with pytest.raises(echo.EchoError, match="Surprise"):
        echo.plan(model(), max_overhead=None, strict=True, **SHAPES)


def test_failed_plan_is_not_kept_on_the_disk(monkeypatch: Patch) -> None:
    saved: list[Any] = []
    monkeypatch.setattr("echo.planning.plan_cache.save", lambda *found: saved.append(found))
    with monkeypatch.context() as patch:
        failing_pass(Differentiate)(patch)
        assert echo.plan(model(), max_overhead=None, **SHAPES).failed
    assert not saved
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    assert not echo.plan(model(), max_overhead=None, **SHAPES).failed
    assert len(saved) == 1


# Binding -----------------------------------------------------------------------------------------------------------


def refusing(patch: Patch, refused: Callable[[Graph], bool]) -> None:
    """MXNet refuses such planned graphs, at the last bind."""
    real = planned_bind._bound

    def bound(original: Symbol, request: Any, rebinder: Any, choice: Any) -> Any:
        if choice.planned is not None and refused(choice.planned.graph):
            raise mx.MXNetError("Check failed:\nno such operator")
        return real(original, request, rebinder, choice)

    patch.setattr(planned_bind, "_bound", bound)


@pytest.mark.parametrize("transparent", [False, True])
@pytest.mark.parametrize(("every", "told"), [(False, "bound without fused operators"), (True, "bound without a plan")])
def test_a_graph_that_mxnet_refuses(
    every: bool, told: str, transparent: bool, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing(monkeypatch, lambda graph: every or fused(graph))
    if transparent:
        with echo.enable(max_overhead=None):
            executor = model().simple_bind(mx.cpu(), **SHAPES)
    else:
        optimized = echo.optimize(model(), max_overhead=None)
        executor = optimized.simple_bind(mx.cpu(), **SHAPES)
        assert [bool(plan.fused) for plan in optimized.plans] == ([] if every else [False])
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(step(executor), STOCK))
    (line,) = lines(caplog)
    assert line.startswith(f"echo: {told}: MXNetError: Check failed: no such operator")
    with pytest.raises(mx.MXNetError, match="no such operator"):
        echo.optimize(model(), max_overhead=None, strict=True).simple_bind(mx.cpu(), **SHAPES)


def test_a_call_that_is_wrong_is_refused_by_mxnet_alone(caplog: pytest.LogCaptureFixture) -> None:
    given = values(model())
    del given["cell_h2h_bias"]
    with pytest.raises(Exception, match="cell_h2h_bias"):
        echo.optimize(model()).bind(mx.cpu(), given, {name: array.copy() for name, array in given.items()})


@pytest.mark.parametrize("transparent", [False, True])
def test_a_reshape_that_mxnet_refuses(transparent: bool, monkeypatch: Patch, caplog: pytest.LogCaptureFixture) -> None:
    with echo.enable(max_overhead=None) if transparent else contextlib.nullcontext():
        symbol = model() if transparent else echo.optimize(model(), max_overhead=None)
        executor = symbol.simple_bind(mx.cpu(), **SHAPES)
    bind = Rebinder.bind

    def refused(self: Any, bound: Any, *args: Any, **more: Any) -> Any:
        if isinstance(bound, Graph) and fused(bound):
            raise mx.MXNetError("Check failed:\nno such operator")
        return bind(self, bound, *args, **more)

    monkeypatch.setattr(Rebinder, "bind", refused)
    for batch in (BATCH // 2, BATCH // 4):
        other = executor.reshape(**{name: (batch, SIZE) for name in SHAPES})
        other.forward(is_train=True)
        other.backward([mx.nd.ones(out.shape) for out in other.outputs])
    told = lines(caplog)
    assert len(told) == (1 if transparent else 2)
    assert all("reshaped without a plan: MXNetError: Check failed: no such operator" in line for line in told)


# Gluon -------------------------------------------------------------------------------------------------------------


class Cells(mx.gluon.HybridBlock):  # type: ignore[misc]
    """As `model`."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.cell = mx.gluon.rnn.LSTMCell(SIZE, input_size=SIZE)

    def hybrid_forward(self, F: Any, x: Any, h: Any, c: Any) -> Any:
        states, outputs = [h, c], []
        for _ in range(STEPS):
            x, states = self.cell(F.tanh(F.exp(F.sigmoid(x))), states)
            outputs.append(x)
        return F.concat(*outputs, dim=1)


def trained(static: bool, optimize: Callable[[Any], Any]) -> list[Any]:
    mx.random.seed(4)
    net = Cells()
    net.initialize(mx.init.Uniform(0.4))
    net = optimize(net)
    net.hybridize(static_alloc=static)
    for batch in (BATCH, BATCH, BATCH // 2):
        data = [mx.nd.random.normal(shape=(batch, SIZE)) for _ in range(3)]
        with mx.autograd.record():
            loss = (net(*data) ** 2).sum()
        loss.backward()
    return [loss.asnumpy(), *(parameter.grad().asnumpy() for parameter in net.collect_params().values())]


@pytest.mark.every(6)
@pytest.mark.parametrize("transparent", [False, True])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("at", ["planning", "making", "the first call"])
@pytest.mark.parametrize("every", [False, True])
def test_block_that_cannot_be_made_falls_back_to_stock(
    every: bool, at: str, static: bool, transparent: bool, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    stock = trained(static, lambda net: net)
    refusing = refusing_op(
        cached_op.StockCachedOp, lambda text: f'"op": "{PREFIX}' in text or (every and "__echo_" in text), at
    )
    if at == "planning":
        failing_pass(Differentiate)(monkeypatch)
        if every:
            failing(Select, "run")(monkeypatch)
    else:
        monkeypatch.setattr(cached_op, "StockCachedOp", refusing)
        monkeypatch.setattr(cached_op, "UnfusedCachedOp", refusing)
    with caplog.at_level(logging.DEBUG, "echo"):
        if transparent:
            with echo.enable(max_overhead=None):
                found = trained(static, lambda net: net)
        else:
            found = trained(static, lambda net: echo.optimize(net, max_overhead=None))
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(found, stock))
    told = lines(caplog)
    assert 1 <= len(told) <= (2 if transparent else 4), told
    assert not transparent or len(set(told)) == len(told), told
    assert all("\n" not in line for line in told)
    assert ("without fused operators" in told[-1]) == (not every), told
    assert every or re.search(r"[1-9]\d* feature maps? recomputed", caplog.text)
