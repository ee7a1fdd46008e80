"""Memory that nothing reads any more is overwritten, however a graph is run, and stock MXNet does not notice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from benchmarks.models import SMALL, random_values
from echo.errors import NativeError
from echo.frontend.install import install_hook
from echo.frontend.mxnet_settings import match_range
from fuzz import dead_chunks
from fuzz.poison import poisoned
from tests.support.training import assert_same, bind, random_arrays, recomputing, train

Symbol = mx.sym.Symbol


@pytest.fixture(autouse=True)
def hook() -> None:
    assert install_hook() == ""


@contextlib.contextmanager
def without_sharing() -> Iterator[None]:
    """Each entry has memory of its own: late reads look right."""
    with match_range(0):
        yield


def chain() -> Symbol:
    hidden = mx.sym.var("data")
    for layer in range(3):
        hidden = mx.sym.FullyConnected(hidden, num_hidden=16, name=f"fc{layer}")
        hidden = mx.sym.Dropout(mx.sym.tanh(hidden, name=f"tanh{layer}"), p=0.3, name=f"drop{layer}")
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(hidden)))


def recurrent() -> Symbol:
    inputs = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, flatten=False, name="fc")
    outputs = mx.sym.RNN(
        mx.sym.sigmoid(inputs, name="sigmoid"), mx.sym.var("weights"), mx.sym.var("state", shape=(1, 4, 16)),
        state_size=16, num_layers=1, mode="gru", name="rnn",
    )  # fmt: skip
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(outputs)))


def trained(symbol: Symbol, values: dict[str, Any]) -> dict[str, Any] | None:
    """A poisoned run; None where echo refuses to run it, or the mode itself says what is wrong."""
    try:
        with poisoned():
            return train(bind(symbol, values))
    except (mx.MXNetError, NativeError):
        return None


# Faults that it finds ------------------------------------------------------------------------------------------------


def test_operator_that_keeps_the_address_of_its_input() -> None:
    """The backward pass of RNN reads the forward pass's input where it was, recomputed or not."""
    symbol = recurrent()
    values = random_arrays(symbol, {"data": (5, 4, 6)})
    with without_sharing():
        expected = train(bind(symbol, values))
        assert_same(trained(symbol, values), expected)
        try:
            marked = recomputing(symbol, {"sigmoid": [0]})
            looks_right = train(bind(marked, values))
        except mx.MXNetError:
            return  # the hook refuses it
        assert_same(looks_right, expected)
        got = trained(marked, values)
    assert got is not None
    assert np.isnan(got["step 0: gradient weights"]).any()


@pytest.mark.parametrize("outputs", [[1], [0, 1]])
def test_mark_on_an_output_that_the_clone_does_not_have(outputs: list[int]) -> None:
    """A clone of Dropout multiplies by the mask, and has no mask of its own."""
    symbol = chain()
    values = random_arrays(symbol, {"data": (4, 6)})
    expected = train(bind(symbol, values))
    got = trained(recomputing(symbol, {"drop1": outputs}), values)
    if got is not None:
        with pytest.raises(AssertionError):
            assert_same(got, expected)


class Keeps(mx.operator.CustomOp):
    """Reads in backward what it was handed in forward."""

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.kept = in_data[0]
        self.assign(out_data[0], req[0], in_data[0] * in_data[0])

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        self.assign(in_grad[0], req[0], 2 * self.kept * out_grad[0])


@mx.operator.register("poison_keeps")
class KeepsProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx: Any, shapes: Any, types: Any) -> Keeps:
        return Keeps()

    def declare_backward_dependency(self, out_grad: Any, in_data: Any, out_data: Any) -> Any:
        return out_grad  # and not what it reads


@pytest.mark.parametrize("static", [None, False, True])
def test_dependency_that_was_not_declared(static: bool | None) -> None:
    """A user's operator that is wrong in stock MXNet: in executors and in CachedOps of both kinds."""

    def loss(F: Any, data: Any, weight: Any) -> Any:
        hidden = F.Custom(F.dot(data, weight) + 1, op_type="poison_keeps")
        return F.sum(F.square(hidden + 1))

    generator = np.random.RandomState(0)
    arrays = {"data": generator.normal(0, 1, (4, 5)), "weight": generator.normal(0, 1, (5, 6))}
    arrays = {name: value.astype("f") for name, value in arrays.items()}

    def gradient() -> Any:
        if static is None:
            symbol = loss(mx.sym, mx.sym.var("data"), mx.sym.var("weight"))
            executor = bind(symbol, arrays)
            executor.forward(is_train=True)
            executor.backward(mx.nd.ones_like(executor.outputs[0]))
            return executor.grad_dict["weight"].asnumpy()
        block = nn.HybridLambda(lambda F, data, weight: loss(F, data, weight))
        block.hybridize(static_alloc=static, inline_limit=0)
        data, weight = (mx.nd.array(arrays[name]) for name in ("data", "weight"))
        weight.attach_grad()
        with autograd.record():
            result = block(data, weight)
        result.backward()
        return weight.grad.asnumpy()

    hidden = arrays["data"] @ arrays["weight"] + 1
    expected = arrays["data"].T @ (4 * hidden * (hidden**2 + 1))
    with without_sharing():
        if static is not False:  # without static_alloc the memory is freed at once: whoever gets it next writes into it
            np.testing.assert_allclose(gradient(), expected, rtol=1e-4)
        with poisoned():
            got = [gradient() for _ in range(8 if static is False else 1)]
    assert any(np.isnan(each).any() or (static is False and not np.allclose(each, expected)) for each in got)


# Arrays that it leaves alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nmt", "resnet50_v1"])
def test_stock_models_do_not_notice(name: str) -> None:
    model = SMALL[name]()
    values = random_values(model)
    expected = train(bind(model.symbol, values, model.grad_req()), 2)
    before = dead_chunks.TALLY.filled
    with poisoned():
        got = train(bind(model.symbol, values, model.grad_req()), 2)
    assert_same(got, expected)
    assert dead_chunks.TALLY.filled > before + 200


def block_run(flags: dict[str, Any], retain: bool) -> list[Any]:
    """Forward passes in several shapes and modes before and between backward passes."""
    mx.random.seed(3)
    net = nn.HybridSequential(prefix="poison_")
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=8), nn.Activation("relu"))
        net.add(nn.Dropout(0.3), nn.GlobalAvgPool2D(), nn.Dense(4, in_units=8), nn.LayerNorm(in_channels=4))
    net.initialize(mx.init.Xavier())
    net.hybridize(**flags)
    seen = []
    for step, size in enumerate((6, 6, 5, 6)):
        data = mx.nd.array(np.random.RandomState(step).normal(0, 1, (2, 3, size, size)))
        data.attach_grad()
        seen.append(net(data).asnumpy())
        with autograd.record():
            result = net(data)
            heads = [result * result]
            if not flags:  # with static_alloc the second pass would overwrite what the first keeps
                heads.append(net(data * 2))
        autograd.backward(heads, retain_graph=retain)
        if retain:
            seen.append(data.grad.asnumpy())
            autograd.backward(heads)
        mx.nd.waitall()
        seen += [array.asnumpy() for array in (result, data.grad)]
        seen += [each.grad().asnumpy() for each in net.collect_params().values() if each.grad_req != "null"]
    return seen


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}])
def test_blocks_do_not_notice(flags: dict[str, Any], retain: bool) -> None:
    expected = block_run(flags, retain)
    before = dead_chunks.TALLY.filled
    with poisoned():
        got = block_run(flags, retain)
    assert dead_chunks.TALLY.filled > before + 40
    assert all(mine.tobytes() == its.tobytes() for mine, its in zip(got, expected))


def test_integers_and_sparse_gradients() -> None:
    words = mx.sym.Cast(mx.sym.var("words", shape=(4, 3)) * 1, dtype="int32")
    found = mx.sym.Embedding(words + 1, input_dim=9, output_dim=5, sparse_grad=True, name="embedding")
    symbol = mx.sym.sum(mx.sym.tanh(mx.sym.sum(found, axis=1)) * 2)
    symbol = mx.sym.MakeLoss(symbol)

    def run() -> Any:
        executor = symbol.simple_bind(mx.cpu(), grad_req={"words": "null", "embedding_weight": "write"})
        executor.arg_dict["words"][:] = np.arange(12).reshape(4, 3) % 7
        executor.arg_dict["embedding_weight"][:] = np.arange(45).reshape(9, 5) / 45
        executor.forward(is_train=True)
        executor.backward()
        return executor.outputs[0].asnumpy(), executor.grad_dict["embedding_weight"].asnumpy()

    expected = run()
    with poisoned():
        got = run()
    assert all(np.array_equal(mine, its) for mine, its in zip(got, expected))


def test_monitors_of_the_users_come_first() -> None:
    symbol = chain()
    values = random_arrays(symbol, {"data": (4, 6)})
    names: list[bytes] = []
    with poisoned():
        executor = bind(symbol, values)
        executor.set_monitor_callback(lambda name, array: names.append(name))
        got = train(executor, 1)
    assert b"fc0_output" in names
    assert_same(got, train(bind(symbol, values), 1))


def test_poison_outside_its_block_overwrites_nothing() -> None:
    symbol = chain()
    values = random_arrays(symbol, {"data": (4, 6)})
    with poisoned():
        executor = bind(symbol, values)
        train(executor, 1)
    before = dead_chunks.TALLY.filled
    train(executor, 1)
    train(bind(symbol, values), 1)
    assert dead_chunks.TALLY.filled == before
