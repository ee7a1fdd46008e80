"""Which plan a signature of a CachedOp runs with, and when the user's own goes on without one."""

from __future__ import annotations

import logging
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import echo
from echo.plans.options import Options
from echo.runtime import cached_op
from echo.runtime.cached_op import PlannedCachedOp
from tests.support.block_scenarios import plans_of
from tests.support.refusing import refusing_op

pytestmark = pytest.mark.usefixtures("cheap_planning")


def called(op: PlannedCachedOp, size: int, train: bool = True) -> Any:
    data, weight = mx.nd.ones((size, 4)), mx.nd.ones((4, 4))
    weight.attach_grad()
    with autograd.record(train_mode=train):
        return op(data, weight)


def light() -> mx.sym.Symbol:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), mx.sym.var("weight"), num_hidden=4, no_bias=True)
    for _ in range(3):
        hidden = mx.sym.sigmoid(mx.sym.tanh(hidden))
    return hidden


def test_one_plan_for_each_signature_and_none_for_inference() -> None:
    options = Options(fuse=False, max_overhead=None)
    op = PlannedCachedOp(light(), [], lambda action, stock: action(options))
    op(mx.nd.ones((8, 4)), mx.nd.ones((4, 4)))
    assert op.plans == {}
    for size in (8, 8, 16):
        called(op, size)
    assert [signature[0][0] for signature in op.plans] == [(8, 4), (16, 4)]


def test_given_up_planning_runs_the_users_graph() -> None:
    expected = light().bind(mx.cpu(), [mx.nd.ones((8, 4)), mx.nd.ones((4, 4))]).forward()[0]
    given_up = PlannedCachedOp(light(), [], lambda action, stock: stock())
    assert (called(given_up, 8).asnumpy() == expected.asnumpy()).all()
    assert given_up.plans == {}


class Masked(gluon.HybridBlock):  # type: ignore[misc]
    """Cells, which are fused, and Dropout, whose masks there are in training alone."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.cell = gluon.rnn.LSTMCell(16, input_size=16)
            self.dense = nn.Dense(16, in_units=16)

    def hybrid_forward(self, F: Any, x: Any, h: Any, c: Any) -> Any:
        for _ in range(6):
            x, (h, c) = self.cell(x, [h, c])
            x = F.Dropout(self.dense(x), p=0.3)
        return x


def gradients_of(block: gluon.HybridBlock, modes: list[bool]) -> list[Any]:
    """The gradients after calls in these modes, training or not, of a block with the same parameters."""
    mx.random.seed(3)
    block.initialize(mx.init.Uniform(0.4), force_reinit=True)
    block.hybridize()
    inputs, found = [mx.nd.random.normal(shape=(64, 16)) for _ in range(3)], []
    for mode in modes:
        with autograd.record(train_mode=mode):
            loss = (block(*inputs) ** 2).sum()
        loss.backward(train_mode=mode)
        found += [parameter.grad().asnumpy() for parameter in block.collect_params().values()]
    return found


@pytest.mark.parametrize("at", ["making", "the first call"])
@pytest.mark.parametrize("modes", [[False, True, False], [True, False]], ids=str)
def test_the_second_choice_runs_in_its_mode_alone(at: str, modes: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = gradients_of(Masked(), modes)
    refusing = refusing_op(cached_op.UnfusedCachedOp, lambda text: "_echo_lstm" in text, at)
    monkeypatch.setattr(cached_op, "UnfusedCachedOp", refusing)
    block = echo.optimize(Masked(), max_overhead=None)
    got = gradients_of(block, modes)
    assert all(np.array_equal(mine, stock) for mine, stock in zip(got, expected))
    (shape,) = block._cached_op._shapes._shapes.values()
    choice = shape.choice
    assert choice.in_training, "where the mode fits, the plan without fused operators runs"
    assert not choice.fuses


class Sum(gluon.HybridBlock):  # type: ignore[misc]
    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        for _ in range(4):
            x = F.tanh(F.exp(F.sigmoid(F.dot(x, x)))) + y
        return x


@pytest.mark.parametrize("wrong", [lambda y: y.astype("float16"), lambda y: y[:5]], ids=["type", "shape"])
def test_a_wrong_call_costs_no_later_plan(
    wrong: Callable[[Any], Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    block = echo.optimize(Sum(), fuse=False, max_overhead=None)
    block.hybridize(static_alloc=True)
    x = mx.nd.ones((64, 64))
    x.attach_grad()
    with pytest.raises(mx.MXNetError), caplog.at_level(logging.WARNING, "echo"), autograd.record():
        block(x, wrong(x)).wait_to_read()
    assert not caplog.records
    assert "infer_type" not in capfd.readouterr().out
    with autograd.record():
        block(x, x).wait_to_read()
    assert [plan.changes_nothing for plan in plans_of(block)] == [False]
