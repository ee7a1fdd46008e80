"""Planned blocks: what hooks see, what is left alone, errors that stay MXNet's own, and bytes that come true."""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import echo
from echo import native
from echo.errors import OptionError
from echo.plans.options import Options
from echo.runtime.cached_op import PlannedCachedOp
from echo.runtime.gluon import optimize_block, session_of_block
from tests.training import assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")
BATCH, FEATURES = 8, 12


def net(*more: gluon.HybridBlock) -> nn.HybridSequential:
    block = nn.HybridSequential(prefix="net_")
    with block.name_scope():
        for _ in range(3):
            block.add(nn.Dense(24), nn.Activation("tanh"), nn.BatchNorm(), nn.Activation("sigmoid"), *more)
        block.add(nn.Dense(5))
    return block


class Cells(gluon.HybridBlock):
    """LSTM cells: their slices are replaced by stateless ones."""

    def __init__(self) -> None:
        super().__init__(prefix="cells_")
        with self.name_scope():
            self.cell, self.out = rnn.LSTMCell(16), nn.Dense(4)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        steps = F.reshape(data, shape=(0, 4, -1))
        hidden = self.cell.unroll(4, steps, layout="NTC", merge_outputs=True)[0]
        return self.out(F.concat(*F.split_v2(F.split(hidden, num_outputs=1, axis=2), 2, axis=2), dim=2))


class Steps(gluon.HybridBlock):
    """One layer many times: MXNet adds the gradients of its weight up in one array."""

    def __init__(self) -> None:
        super().__init__(prefix="steps_")
        with self.name_scope():
            self.layer, self.out = nn.Dense(FEATURES, in_units=FEATURES), nn.Dense(4)

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        for _ in range(12):
            data = F.sigmoid(F.tanh(self.layer(data)))
        return self.out(data)


class Mirrored(Cells):
    """MXNet's executors would recompute all of it, its CachedOp recomputes nothing."""

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        with mx.AttrScope(__force_mirroring__="1"):
            return super().hybrid_forward(F, data)


BLOCKS: dict[str, Callable[[], gluon.HybridBlock]] = {
    "layers": lambda: net(nn.Dropout(0.3)), "cells": Cells, "steps": Steps, "mirrored": Mirrored,
}  # fmt: skip


# Whether there is something to fuse, and it is
FUSED = [
    ("layers", False),
    ("cells", False),
    ("cells", True),
    ("steps", False),
    ("mirrored", False),
    ("mirrored", True),
]


def made(build: Callable[[], gluon.HybridBlock], on: bool, fuse: bool = False, **flags: Any) -> gluon.HybridBlock:
    with mx.name.NameManager():
        mx.random.seed(3)
        block = build()
        block.initialize(mx.init.Xavier())
        block.hybridize(**flags)
        return echo.optimize(block, max_overhead=None, fuse=fuse) if on else block


def inputs(size: int = BATCH) -> mx.nd.NDArray:
    data = mx.nd.array(np.random.RandomState(size).normal(0, 1, (size, FEATURES)))
    data.attach_grad()
    return data


def step(block: gluon.HybridBlock, data: mx.nd.NDArray, seen: dict[str, Any] | None = None) -> mx.nd.NDArray:
    with autograd.record():
        loss = block(data).square().sum()
    loss.backward()
    mx.nd.waitall()
    if seen is not None:
        seen[f"{len(seen)} loss"], seen[f"{len(seen)} gradient"] = loss.asnumpy(), data.grad.asnumpy()
    return loss


def recomputed(block: gluon.HybridBlock) -> int:
    assert isinstance(block._cached_op, PlannedCachedOp)
    return sum(plan.recomputed_nodes for plan in block._cached_op.plans.values())


def fused(block: gluon.HybridBlock) -> int:
    return sum(len(plan.fused) for plan in block._cached_op.plans.values())


# Hooks -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:register_op_hook is experimental")  # said of every block
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("late", [False, True], ids=["before the plan", "after"])
@pytest.mark.parametrize(("name", "fuse"), FUSED)
def test_hooks_see_what_they_saw_without_a_plan(name: str, fuse: bool, everything: bool, late: bool) -> None:
    found = []
    for on in (False, True):
        names: list[tuple[Any, ...]] = []

        def hook(name: Any, op: Any, handle: Any, names: list[tuple[Any, ...]] = names) -> None:
            array = mx.nd.NDArray(ctypes.cast(handle, mx.base.NDArrayHandle), writable=False)
            names.append((name, op, array.shape))

        block = made(BLOCKS[name], on, fuse)
        if late:
            step(block, inputs())
        block.register_op_hook(hook, monitor_all=everything)
        step(block, inputs())
        found.append(names)
    assert fused(block) if fuse else recomputed(block)
    assert found[0]
    assert found[1] == found[0]


# What is left alone, and errors ------------------------------------------------------------------------------------


def test_blocks_that_are_not_hybridized_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[dict[str, Any]] = []
    for on in (False, True):
        record: dict[str, Any] = {}
        with caplog.at_level(logging.DEBUG, "echo"):
            block = made(net, False)
            block.hybridize(False)
            if on:
                with echo.enable(max_overhead=None):
                    step(block, inputs(), record)
            else:
                step(block, inputs(), record)
        seen.append(record)
    assert block._cached_op is None
    assert not caplog.records
    assert_same(seen[1], seen[0])


def test_second_derivatives_of_blocks_that_mxnet_inlines() -> None:
    found = []
    for on in (False, True):
        block = made(lambda: nn.HybridLambda("sin", prefix="sin_"), on)
        data = inputs()
        with autograd.record():
            first = autograd.grad(block(data), data, create_graph=True, retain_graph=True)[0]
            penalty = first**2
        penalty.backward()
        found.append({"first": first.asnumpy(), "second": data.grad.asnumpy()})
    assert found[0]["second"].any()
    assert_same(found[1], found[0])


def test_second_derivatives_of_larger_blocks_fail_as_in_mxnet() -> None:
    said = []
    for on in (False, True):
        block, data = made(net, on), inputs()
        step(block, data)
        with autograd.record():
            total = block(data).sum()
            with pytest.raises(mx.MXNetError) as caught:
                autograd.grad(total, data, create_graph=True, retain_graph=True)
        said.append(str(caught.value).splitlines()[-1])
    assert recomputed(block)
    assert "higher order" in said[0] or "not differentiable" in said[0]
    assert said[1] == said[0]


def test_a_second_backward_pass_fails_as_in_mxnet() -> None:
    said = []
    for on in (False, True):
        block = made(net, on)
        with autograd.record():
            loss = block(inputs()).sum()
        loss.backward()
        with pytest.raises(mx.MXNetError) as caught:
            loss.backward()
        said.append(str(caught.value).splitlines()[-1])
    assert recomputed(block)
    assert said[1] == said[0]


def test_wrong_inputs_are_mxnets_error() -> None:
    said = []
    for on in (False, True):
        block = made(net, on)
        step(block, inputs())
        with pytest.raises(mx.MXNetError) as caught, autograd.record():
            block(mx.nd.ones((BATCH, FEATURES + 1)))
        said.append(str(caught.value).splitlines()[-1])
    assert said[1] == said[0]


# Plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}])
def test_each_shape_is_planned_once(flags: dict[str, bool], caplog: pytest.LogCaptureFixture) -> None:
    block = made(net, True, **flags)
    with caplog.at_level(logging.DEBUG, "echo"):
        for size in (8, 3, 8, 20, 3, 8):
            step(block, inputs(size))
    assert sorted(signature[0][0][0] for signature in block._cached_op.plans) == [3, 8, 20]
    assert len([record for record in caplog.records if "planned" in record.message]) == 3


@pytest.mark.parametrize(("name", "fuse"), FUSED)
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("mirror", ["0", "1"])  # which executors obey, and no CachedOp
def test_planned_bytes_come_true(name: str, fuse: bool, on: bool, mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With static_alloc and gradients of every input, MXNet allocates to the byte what the plan says."""
    monkeypatch.setenv("MXNET_BACKWARD_DO_MIRROR", mirror)
    planned_block = made(BLOCKS[name], True, fuse, static_alloc=True)
    data = inputs(64)
    step(planned_block, data)
    (plan,) = planned_block._cached_op.plans.values()
    assert plan.fused if fuse else plan.recomputed_nodes
    assert plan.after.planned < plan.before.planned
    block = made(BLOCKS[name], False, static_alloc=True)
    if on:
        block = planned_block
        block._cached_op._current = type(block._cached_op._current)(planned_symbol(block), block._cached_op._flags)
    with autograd.record(), native.capture() as forward:
        loss = block(data)
    with native.capture() as backward:
        loss.backward()
    mx.nd.waitall()
    found = forward.graph["touched_bytes"] + backward.graph["touched_bytes"]
    assert found == (plan.after if on else plan.before).planned


@pytest.mark.parametrize(("name", "fuse"), FUSED)
def test_what_is_planned_beforehand_is_what_trains(name: str, fuse: bool) -> None:
    """Hooks of the block see arrays alone."""
    block, seen = made(BLOCKS[name], True, fuse, static_alloc=True), []
    block.register_forward_hook(lambda _, inputs, output: seen.append(output.shape))
    step(block, inputs())
    (plan,) = block._cached_op.plans.values()
    ahead = made(BLOCKS[name], False, static_alloc=True)
    ahead.register_forward_hook(lambda _, inputs, output: seen.append(output.shape))
    before = echo.plan(ahead, max_overhead=None, fuse=fuse, data=(BATCH, FEATURES))
    assert (before.before.planned, before.after.planned) == (plan.before.planned, plan.after.planned)
    assert before.fingerprint == plan.fingerprint
    assert len(seen) == 1


@pytest.mark.parametrize("many", [False, True])
def test_a_block_of_the_numpy_interface_is_planned_beforehand(many: bool) -> None:
    class Numbers(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.dense = nn.Dense(64, in_units=32)

        def hybrid_forward(self, F: Any, data: Any) -> Any:
            hidden = F.np.tanh(self.dense(data)) * F.npx.sigmoid(data[:, :1])
            return (hidden, F.np.exp(hidden)) if many else hidden

    with mx.util.np_shape(True), mx.util.np_array(True):
        block, ahead = Numbers(), Numbers()
        for each in (block, ahead):
            each.initialize()
            each.hybridize(static_alloc=True)
        data = mx.np.ones((256, 32))
        with autograd.record():
            outputs = echo.optimize(block, max_overhead=None)(data)
        mx.autograd.backward(outputs)
        plan = echo.plan(ahead, max_overhead=None, data=data.shape)
    (trained,) = block._cached_op.plans.values()
    assert plan.fingerprint == trained.fingerprint
    assert plan.after.planned == trained.after.planned


class Loop(gluon.HybridBlock):
    """MXNet knows the shape of a while_loop's outputs when it has run."""

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        def again(count: Any, x: Any) -> Any:
            return F.sin(x), [count + 1, F.cos(x)]

        states = [F.zeros((1,)), F.sin(data)]
        _, (_, x) = F.contrib.while_loop(lambda count, x: count < 3, again, states, max_iterations=5)
        return F.sin(F.LayerNorm(F.broadcast_add(data, x), F.ones((12,)), F.zeros((12,))))


def test_a_shape_that_is_not_known_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    seen = []
    for on in (False, True):
        found: dict[str, Any] = {}
        step(made(Loop, on, fuse=True), inputs(), found)
        seen.append(found)
    assert_same(*seen)
    (said,) = (record.message for record in caplog.records if "without a plan" in record.message)
    assert "does not know the shape of" in said
    assert "(_while_loop) before it runs" in said


def test_sums_of_gradients_have_their_bits() -> None:
    seen: list[dict[str, Any]] = []
    for on in (False, True):
        block, found = made(Steps, on, static_alloc=True), {}
        for size in (64, 64):
            step(block, inputs(size), found)
            found.update({name: value.grad().asnumpy() for name, value in block.collect_params().items()})
        seen.append(found)
    assert_same(*seen)
    (plan,) = block._cached_op.plans.values()
    assert plan.recomputed_nodes


def planned_symbol(block: gluon.HybridBlock) -> mx.sym.Symbol:
    from echo.frontend.symbols import symbol_of

    return symbol_of(block._cached_op._choice.graph)


# Which blocks ------------------------------------------------------------------------------------------------------


def test_every_block_that_can_be_hybridized_is_planned() -> None:
    plain = nn.Sequential()
    plain.add(net(), nn.Sequential())
    assert optimize_block(plain, Options(fuse=False, max_overhead=None)) is plain
    plain.initialize()
    plain.hybridize()
    step(plain, inputs())
    assert recomputed(plain[0]) > 0
    with pytest.raises(OptionError, match="expected a HybridBlock, or a Block with some in it, got Sequential without"):
        optimize_block(nn.Sequential(), Options())


class Difference(gluon.HybridBlock):
    def hybrid_forward(self, F: Any, first: Any, second: Any) -> Any:
        return F.dot(first, second)


@pytest.mark.filterwarnings("ignore:Cannot decide type")  # of SymbolBlock
def test_shapes_find_their_inputs_by_name() -> None:
    block, shapes = Difference(), {"second": (4, 8), "first": (2, 4)}
    session = session_of_block(block, shapes, mx.cpu())()
    assert session.argument_names() == ["first", "second"]
    session = session_of_block(block, {"a": (2, 4), "b": (4, 8)}, mx.cpu())()
    assert session.argument_names() == ["a", "b"]
    outputs = mx.sym.dot(mx.sym.var("x"), mx.sym.var("y"))
    imported = gluon.SymbolBlock(outputs, [mx.sym.var("x"), mx.sym.var("y")])
    session = session_of_block(imported, {"y": (4, 8), "x": (2, 4)}, mx.cpu())()
    assert session.argument_names() == ["x", "y"]


class Optional(gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any, scale: Any = None, shift: Any = None) -> Any:
        return x if scale is None else x * scale


@pytest.mark.parametrize(
    ("block", "names", "message"),
    [
        (Difference(), "first sceond", "unknown input 'sceond' of Difference, expected first, second, got first,"),
        (Difference(), "wrong", "unknown input 'wrong' of Difference, expected first, second, got wrong"),
        (Difference(), "a b c", "unknown input 'a' of Difference, expected first, second, got a, b, c"),
        (Difference(), "first second third", "unknown input 'third' of Difference, expected first, second, got first,"),
        (Difference(), "second", "no shape for the input 'first' of Difference, expected first, second, got second"),
        (Optional(), "x shift", "no shape for the input 'scale' of Optional, expected x, scale, shift, got x, shift"),
        (nn.HybridSequential(), "x wrong", "unknown input 'wrong' of HybridSequential, expected x, got x, wrong"),
    ],
)  # fmt: skip
def test_shapes_of_other_inputs_are_refused_with_their_names(block: Any, names: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        echo.plan(block, **{name: (4, 4) for name in names.split()})


def test_shapes_of_inputs_with_defaults_may_be_left_out() -> None:
    for names in (["x"], ["x", "scale"], ["a"], ["a", "b"]):
        session = session_of_block(Optional(), {name: (4, 4) for name in names}, mx.cpu())()
        assert session.argument_names() == names


@pytest.mark.parametrize(
    ("flags", "runner"), [({}, "dynamic"), ({"static_alloc": True}, "static"), ({"static_shape": True}, "dynamic")]
)
def test_a_session_is_of_the_runner_that_the_flags_ask_for(flags: dict[str, bool], runner: str) -> None:
    block = net()
    block.hybridize(**flags)
    session = session_of_block(block, {"data": (BATCH, FEATURES)}, mx.cpu())()
    assert session.subject.runner == runner
    assert session.differentiate().runner == runner
