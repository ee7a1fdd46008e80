"""``verify`` of blocks and of buckets: a wrong plan is found, a right one trains as before."""

from __future__ import annotations

import json
import logging
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import echo
from echo.errors import VerificationError
from tests.support.training import assert_alive, assert_same
from tests.support.wrong_plans import FLAGS, OPTIONS, folders, inputs, made, warnings_of

pytestmark = pytest.mark.usefixtures("cheap_planning", "own_folder")
S = mx.sym


# Executors -------------------------------------------------------------------------------------------------------


def buckets() -> dict[str, Any]:
    def symbol(length: int) -> tuple[S.Symbol, tuple[str, ...], tuple[str, ...]]:
        cell = mx.rnn.LSTMCell(16, prefix="l_")
        hidden, _ = cell.unroll(length, S.var("data"), layout="NTC", merge_outputs=True)
        hidden = S.Dropout(S.sigmoid(S.tanh(S.reshape(hidden, shape=(-1, 16)))), p=0.3)
        hidden = S.FullyConnected(hidden, num_hidden=5, name="pred")
        label = S.reshape(S.var("softmax_label"), shape=(-1,))
        return S.SoftmaxOutput(hidden, label, name="softmax"), ("data",), ("softmax_label",)

    def batch(length: int) -> mx.io.DataBatch:
        generator = np.random.RandomState(length)
        data = mx.nd.array(generator.normal(0, 1, (8, length, 12)))
        label = mx.nd.array(generator.randint(0, 5, (8, length)))
        return mx.io.DataBatch([data], [label], bucket_key=length, provide_data=[("data", data.shape)],
                               provide_label=[("softmax_label", label.shape)])  # fmt: skip

    module = mx.mod.BucketingModule(symbol, default_bucket_key=9, context=[mx.cpu(0), mx.cpu(1)])
    module.bind([("data", (8, 9, 12))], [("softmax_label", (8, 9))])
    mx.random.seed(4)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer="adam")
    for length in (9, 4, 9, 6, 4):
        module.forward(batch(length), is_train=True)
        module.backward()
        module.update()
    args, _ = module.get_params()
    return {"random": mx.nd.random.uniform(shape=9).asnumpy(), **{name: args[name].asnumpy() for name in args}}


def test_buckets_on_two_devices(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "echo")
    with echo.enable(**OPTIONS):
        got = buckets()
    assert_same(got, buckets())
    assert not warnings_of(caplog)
    said = [record.getMessage() for record in caplog.records]
    assert sum("are those of the original graph" in text for text in said) == 6  # three lengths, two devices


# Gluon -----------------------------------------------------------------------------------------------------------


def fitted(block: nn.HybridSequential, grad_req: str = "write") -> dict[str, Any]:
    block(inputs())  # shapes are inferred
    for param in block.collect_params().values():
        if param.grad_req != "null":
            param.grad_req = grad_req
    trainer = gluon.Trainer(block.collect_params(), "adam", {"learning_rate": 0.01})
    mx.random.seed(5)
    seen: dict[str, Any] = {}
    for step in range(3):
        with autograd.record():
            loss = (block(inputs(step)) ** 2).sum() + block(inputs(9)[:6]).sum()
        loss.backward()
        trainer.step(8)
        mx.nd.waitall()
        seen[f"step {step} output"] = loss.asnumpy()
        seen[f"step {step} random"] = mx.nd.random.uniform(shape=8).asnumpy()
        for name, param in block.collect_params().items():
            seen[f"step {step} {name}"] = param.data().asnumpy()
            if param.grad_req != "null":
                seen[f"step {step} gradient {name}"] = param.grad().asnumpy()
    assert_alive(seen)
    return seen


@pytest.mark.every(2)
@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_a_right_block_trains_as_it_did(
    flags: dict[str, bool], grad_req: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "echo")
    block = made(True, flags)
    assert_same(fitted(block, grad_req), fitted(made(False, flags), grad_req))
    assert all(plan.recomputed_nodes for plan in block._cached_op.plans.values())
    assert not warnings_of(caplog)
    said = [record.getMessage() for record in caplog.records]
    assert sum("are those of the original graph" in text for text in said) == 2  # one for each shape


@pytest.mark.every(2)
@pytest.mark.usefixtures("wrong_plans")
@pytest.mark.parametrize("on", ["optimize", "enable"])
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_a_wrong_block_is_found(flags: dict[str, bool], on: str, caplog: pytest.LogCaptureFixture) -> None:
    if on == "enable":
        with echo.enable(**OPTIONS):
            got = fitted(made(False, flags))
    else:
        got = fitted(made(True, flags))
    assert_same(got, fitted(made(False, flags)))
    assert len(warnings_of(caplog)) == len(folders()) == 2  # shapes
    about = json.loads((folders()[0] / "about.json").read_text())
    assert about["runner"] == ("dynamic", "static", "static shape")[len(flags)]
    assert any("gradient net_dense0_weight" in text for text in about["differences"])


@pytest.mark.usefixtures("wrong_plans")
def test_strict_blocks_raise() -> None:
    block = made(True, {}, strict=True)
    with autograd.record(), pytest.raises(VerificationError, match="output 0 by"):
        block(inputs())


# Options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}], ids=["dynamic", "static"])
def test_blocks_with_sparse_gradients_are_verified(flags: dict[str, bool], caplog: pytest.LogCaptureFixture) -> None:
    net = nn.HybridSequential()
    net.add(
        nn.Embedding(50, 16, sparse_grad=True), nn.Dense(32, flatten=False), nn.HybridLambda("tanh"), nn.LayerNorm()
    )
    net.initialize()
    echo.optimize(net, **OPTIONS).hybridize(**flags)
    with caplog.at_level(logging.INFO, "echo"), autograd.record():
        loss = net(mx.nd.array(np.arange(40).reshape(8, 5))).sum()
    loss.backward()
    mx.nd.waitall()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
