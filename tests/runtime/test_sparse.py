"""Sparse gradients and arguments: a plan for the rest of the model, or a reason; always MXNet's bits."""

from __future__ import annotations

import logging
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest

import echo

pytestmark = pytest.mark.usefixtures("cheap_planning")
WORDS, SIZE, BATCH = 300, 32, 16
FLAGS = {"dynamic": {}, "static": {"static_alloc": True}, "static shape": {"static_alloc": True, "static_shape": True}}


def _rest(F: Any, x: Any) -> Any:
    for _ in range(3):
        x = F.exp(F.sigmoid(F.tanh(x) * 2) - 0.5)
    return x


class Embedded(mx.gluon.HybridBlock):  # type: ignore[misc]
    """An Embedding whose gradient is row_sparse, twice where it is shared."""

    def __init__(self, shared: bool) -> None:
        super().__init__(prefix="net_")
        self.shared = shared
        with self.name_scope():
            self.embed = mx.gluon.nn.Embedding(WORDS, SIZE, sparse_grad=True)
            self.dense = mx.gluon.nn.Dense(64, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        found = self.embed(x)
        if self.shared:
            found = found + self.embed(F.reverse(x, axis=1))
        return _rest(F, self.dense(found))


class Products(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A product of a csr array."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(WORDS, SIZE))

    def hybrid_forward(self, F: Any, x: Any, weight: Any) -> Any:
        return _rest(F, F.sparse.dot(x, weight))


def words() -> Any:
    return mx.nd.array(np.random.RandomState(1).randint(0, WORDS, (BATCH, 20)))


def rows() -> Any:
    return mx.nd.array(np.eye(WORDS)[:BATCH]).tostype("csr")


def trained(make: Callable[[], Any], data: Any, flags: dict[str, bool], optimize: Callable[[Any], Any]) -> list[Any]:
    """Losses and weights of some steps."""
    mx.random.seed(3)
    net = make()
    net.initialize(mx.init.Uniform(0.3))
    net = optimize(net)
    net.hybridize(**flags)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    found = []
    for _ in range(3):
        with mx.autograd.record():
            loss = net(data).mean()
        loss.backward()
        trainer.step(1)
        found.append(loss.asnumpy())
    return found + [parameter.data().asnumpy() for parameter in net.collect_params().values()]


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("shared", [False, True])
def test_a_block_with_sparse_gradients_is_planned(shared: bool, flags: str, caplog: pytest.LogCaptureFixture) -> None:
    def run(optimize: Callable[[Any], Any]) -> list[Any]:
        return trained(lambda: Embedded(shared), words(), FLAGS[flags], optimize)

    stock = run(lambda net: net)
    with caplog.at_level(logging.DEBUG, "echo"):
        found = run(lambda net: echo.optimize(net, max_overhead=None, fuse=False))
    assert "recomputed" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(found, stock))


@pytest.mark.parametrize("flags", ["dynamic", "static"])
def test_a_block_with_sparse_arguments_runs_as_it_is(flags: str, caplog: pytest.LogCaptureFixture) -> None:
    stock = trained(Products, rows(), FLAGS[flags], lambda net: net)
    with caplog.at_level(logging.DEBUG, "echo"):
        found = trained(Products, rows(), FLAGS[flags], lambda net: echo.optimize(net, strict=True))
    assert "runs as it is: sparse arguments" in caplog.text
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(found, stock))


def test_an_executor_with_sparse_gradients_is_planned() -> None:
    embedded = mx.sym.Embedding(mx.sym.var("data"), input_dim=WORDS, output_dim=SIZE, sparse_grad=True, name="embed")
    symbol = mx.sym.mean(_rest(mx.sym, mx.sym.FullyConnected(embedded, num_hidden=64, flatten=False, name="dense")))
    requests = {name: "null" if name == "data" else "write" for name in symbol.list_arguments()}

    def step(bound: mx.sym.Symbol) -> list[Any]:
        executor = bound.simple_bind(mx.cpu(), grad_req=requests, data=(BATCH, 20))
        drawn = np.random.RandomState(1)
        for name, array in executor.arg_dict.items():
            array[:] = drawn.randint(0, WORDS, array.shape) if name == "data" else drawn.normal(0, 0.3, array.shape)
        executor.forward(is_train=True)
        executor.backward([mx.nd.ones(1)])
        gradients = [array for array in executor.grad_arrays if array is not None]
        assert [array.stype for array in gradients].count("row_sparse") == 1
        return [array.asnumpy() for array in (*executor.outputs, *gradients)]

    optimized = echo.optimize(symbol, max_overhead=None, fuse=False, strict=True)
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(step(optimized), step(symbol)))
    assert optimized.plans[-1].recomputed


def embedding(words: int = 50) -> mx.sym.Symbol:
    """An operator whose gradient is row_sparse whatever its weight is."""
    found = mx.sym.contrib.SparseEmbedding(mx.sym.var("data"), mx.sym.var("w"), input_dim=words, output_dim=SIZE)
    return _rest(mx.sym, mx.sym.FullyConnected(found, num_hidden=64, name="fc"))


def test_sparse_embedding_of_a_dense_weight_is_planned(caplog: pytest.LogCaptureFixture) -> None:
    def run(symbol: mx.sym.Symbol) -> list[Any]:
        executor = symbol.simple_bind(mx.cpu(), grad_req={"data": "null", **dict.fromkeys(NAMES, "write")}, data=(40,))
        for name, array in executor.arg_dict.items():
            draw = np.random.RandomState(2)
            array[:] = draw.randint(0, 50, array.shape) if name == "data" else draw.normal(0, 0.3, array.shape)
        executor.forward(is_train=True)
        executor.backward([mx.nd.ones(out.shape) for out in executor.outputs])
        return [*executor.outputs, *(executor.grad_dict[name] for name in NAMES)]

    optimized = echo.optimize(embedding(), strict=True, fuse=False, max_overhead=None)
    found, stock = run(optimized), run(embedding())
    assert optimized.plans[-1].recomputed
    assert [array.stype for array in found] == [array.stype for array in stock]
    assert [array.asnumpy().tobytes() for array in found] == [array.asnumpy().tobytes() for array in stock]
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


NAMES = ("w", "fc_weight", "fc_bias")
