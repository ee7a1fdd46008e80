"""Blocks that echo plans behave as MXNet's own: hooks, errors, second derivatives, and which blocks are planned."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import echo
from echo.errors import OptionError
from echo.plans.options import Options
from echo.runtime import gluon as runtime_gluon
from echo.runtime.gluon import Unplanned, framework_of_block, optimize_block
from echo.system.threads import ONCE
from tests.support.gluon_blocks import BATCH, BLOCKS, FEATURES, FUSED, fused, inputs, made, net, recomputed, step
from tests.support.training import assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")


# Hooks -------------------------------------------------------------------------------------------------------------


@pytest.mark.every(5)
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


@pytest.mark.parametrize(
    ("flags", "runner"), [({}, "dynamic"), ({"static_alloc": True}, "static"), ({"static_shape": True}, "dynamic")]
)
def test_a_session_is_of_the_runner_that_the_flags_ask_for(flags: dict[str, bool], runner: str) -> None:
    block = net()
    block.hybridize(**flags)
    session = framework_of_block(block, {"data": (BATCH, FEATURES)}, mx.cpu())()
    assert session.key.runner == runner
    assert session.differentiate().runner == runner


def _train(net: gluon.Block) -> None:
    for layer in range(3):
        net.add(nn.Dense(4 + layer), nn.Activation("tanh"), nn.LayerNorm())
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    for _ in range(2):
        with autograd.record():
            loss = net(mx.nd.ones((8, 4))).sum()
        loss.backward()
        trainer.step(8)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.setattr("echo.runtime.gluon.UNPLANNED", Unplanned())
    ONCE.forget()
    caplog.set_level(logging.INFO, "echo")
    return caplog


def test_block_that_is_not_hybridized_is_told_once(said: pytest.LogCaptureFixture) -> None:
    with echo.enable():
        _train(nn.HybridSequential())
        _train(nn.HybridSequential())
    lines = [record.getMessage() for record in said.records]
    assert len(lines) == 1
    assert "call hybridize()" in lines[0]
    assert "call hybridize()" in runtime_gluon.UNPLANNED.why()


def test_block_that_is_hybridized_is_not_told(said: pytest.LogCaptureFixture) -> None:
    with echo.enable():
        net = nn.HybridSequential()
        net.hybridize()
        _train(net)
    assert not [record for record in said.records if "hybridize" in record.getMessage()]


@pytest.mark.filterwarnings("ignore:All children of this Sequential layer")
def test_sequential_that_is_hybridized_is_told_once(said: pytest.LogCaptureFixture) -> None:
    with echo.enable():
        for _ in range(2):
            net = nn.Sequential()
            net.add(nn.Dense(4), nn.Dense(3))
            net.hybridize()
            net.hybridize(False)
    (line,) = [record.getMessage() for record in said.records]
    assert "each of the 2 blocks in it is planned by itself" in line
    assert "a HybridSequential is planned as a whole" in line


def test_sequential_that_is_optimized_is_told(said: pytest.LogCaptureFixture) -> None:
    net = nn.Sequential()
    net.add(nn.Dense(4), nn.Dense(3))
    echo.optimize(net)
    assert "Sequential is no HybridBlock" in said.text


def test_trainer_and_blocks_are_mxnets_own_again_when_disabled() -> None:
    step, hybridize = gluon.Trainer.step, gluon.Block.hybridize
    with echo.enable():
        assert gluon.Trainer.step is not step
    assert (gluon.Trainer.step, gluon.Block.hybridize) == (step, hybridize)
