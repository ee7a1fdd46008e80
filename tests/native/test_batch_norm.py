"""BatchNorm with a ReLU in one operator: MXNet's gradient of it is right for any order of its arrays, with the hook."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.base import _LIB, check_call
from mxnet.gluon import nn

import echo
from echo.frontend.install import install_hook, onednn_norms
from echo.ir.op_spec import SIGNS_ATTRIBUTE

pytestmark = pytest.mark.usefixtures("cheap_planning")
Symbol = mx.sym.Symbol
TOLERANCE = 1e-5
SIDE = 16


def convolution(x: Symbol, size: int, **more: Any) -> Symbol:
    return mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=size, no_bias=True, **more)


# What computes the input, in which order, and what reads the output.
INPUTS: dict[str, Callable[[Symbol, int], Symbol]] = {
    "plain": lambda x, size: mx.sym.exp(0.1 * x),
    "a variable": lambda x, size: x,
    "blocked": lambda x, size: convolution(x, size, name="before"),
    "groups": lambda x, size: convolution(x, size, num_group=size, name="before"),
    "pooled": lambda x, size: mx.sym.Pooling(convolution(x, size, name="before"), kernel=(2, 2), pool_type="max"),
    "summed": lambda x, size: convolution(x, size, name="before") + 2 * x,
}
READERS: dict[str, Callable[[Symbol], Symbol]] = {
    "convolution": lambda y: convolution(y, 32, name="after"),
    "groups": lambda y: mx.sym.Deconvolution(y, kernel=(2, 2), num_filter=16, name="after"),
    "global pooling": lambda y: mx.sym.Pooling(mx.sym.Dropout(y, p=0.3), global_pool=True, pool_type="avg",
                                               kernel=(1, 1)),
    "two": lambda y: mx.sym.Group([convolution(y, 32, name="after"), mx.sym.tanh(y)]),
    "nothing": lambda y: y,
}  # fmt: skip


# What else reads the input, afterwards.
OTHERS: dict[str, Callable[[Symbol], Symbol]] = {
    "nothing": lambda x: None,
    "a view": lambda x: mx.sym.softmax(mx.sym.Reshape(x, shape=(0, -1))),
    "a layer": lambda x: mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=5, name="layer"),
    "an axis": lambda x: mx.sym.tanh(mx.sym.expand_dims(x, axis=0)),
    "a convolution": lambda x: convolution(x, 16, name="other"),
}


def rectified(x: Symbol, fused: bool) -> Symbol:
    """A BatchNorm and its ReLU, or both in one operator as in plans."""
    if fused:
        return mx.sym.contrib.BatchNormWithReLU(x, fix_gamma=False, name="norm", attr={SIGNS_ATTRIBUTE: "True"})
    return mx.sym.Activation(mx.sym.BatchNorm(x, fix_gamma=False, name="norm"), act_type="relu", name="act")


def network(read: str, write: str, size: int, fused: bool, also: str = "nothing") -> Symbol:
    x = INPUTS[read](mx.sym.var("data"), size)
    heads = [READERS[write](rectified(x, fused)), OTHERS[also](x)]
    return mx.sym.Group(list(filter(lambda head: head is not None, heads)))


@pytest.fixture(autouse=True)
def hook() -> None:
    assert install_hook() == ""


def trained(executor: mx.executor.Executor, steps: int = 2, modes: tuple[bool, bool] = (True, True)) -> list[Any]:
    """Outputs, gradients and moving statistics after some steps in these modes of forward and backward."""
    rng = np.random.RandomState(0)
    for _, array in sorted(executor.arg_dict.items()):
        array[:] = rng.normal(size=array.shape)
    for array in executor.aux_arrays:
        array[:] = 1
    found = []
    for _ in range(steps):
        mx.random.seed(5)
        executor.forward(is_train=modes[0])
        executor.backward([mx.nd.array(rng.normal(size=out.shape)) for out in executor.outputs], is_train=modes[1])
        arrays = (*executor.outputs, *filter(lambda array: array is not None, executor.grad_arrays))
        found += [array.asnumpy() for array in (*arrays, *executor.aux_arrays)]
    return found


def backward(executor: mx.executor.Executor, gradient: mx.nd.NDArray) -> None:
    executor.backward(gradient)
    mx.nd.waitall()


def assert_close(mine: list[Any], theirs: list[Any]) -> None:
    assert len(mine) == len(theirs)
    for x, y in zip(mine, theirs):
        assert np.abs(x - y).max() <= TOLERANCE * max(1, np.abs(y).max())


@pytest.mark.every(11)
@pytest.mark.parametrize("size", [3, 8, 16, 17])
@pytest.mark.parametrize("also", OTHERS)
@pytest.mark.parametrize("write", READERS)
@pytest.mark.parametrize("read", INPUTS)
def test_gradients_are_right_whatever_the_order(read: str, write: str, also: str, size: int) -> None:
    symbols = (network(read, write, size, fused, also) for fused in (True, False))
    mine, stock = (symbol.simple_bind(mx.cpu(), data=(2, size, SIDE, SIDE)) for symbol in symbols)
    assert_close(trained(mine), trained(stock))


def test_mxnets_own_gradient_is_wrong_where_orders_differ() -> None:
    """Else the hook would not be needed."""
    assert onednn_norms()
    data = mx.sym.var("data")
    stock = trained(network("a variable", "convolution", 16, False).simple_bind(mx.cpu(), data=(2, 16, SIDE, SIDE)))
    for attrs, is_right in (({}, False), ({SIGNS_ATTRIBUTE: "True"}, True)):
        norm = mx.sym.contrib.BatchNormWithReLU(data, fix_gamma=False, name="norm", attr=attrs)
        found = trained(convolution(norm, 32, name="after").simple_bind(mx.cpu(), data=(2, 16, SIDE, SIDE)))
        errors = [np.abs(x - y).max() / np.abs(y).max() for x, y in zip(found, stock)]
        assert (max(errors) < TOLERANCE) == is_right
        assert is_right or max(errors) > 0.1


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 1, 3, 5), (1, 3, 2, 2), (2, 17, 1, 1), (3, 16, 2, 2)])
def test_small_arrays_have_room_for_the_signs(shape: tuple[int, ...]) -> None:
    mine, stock = (rectified(mx.sym.var("data"), fused).simple_bind(mx.cpu(), data=shape) for fused in (True, False))
    assert_close(trained(mine), trained(stock))


def test_signs_of_marked_nodes_take_a_byte_for_each_element() -> None:
    def bytes_of(**attrs: str) -> int:
        norm = mx.sym.contrib.BatchNormWithReLU(mx.sym.var("data"), name="norm", attr=attrs)
        executor = norm.simple_bind(mx.cpu(), data=(8, 64, 32, 32), grad_req="null")
        return int(executor.debug_str().split("Total ")[1].split()[0])

    output = 8 * 64 * 32 * 32 * 4 >> 20
    assert bytes_of() == 2 * output
    assert bytes_of(**{SIGNS_ATTRIBUTE: "True"}) == output + output // 4


def test_backward_without_a_forward_pass_in_training_is_an_error() -> None:
    """Plans never come to that: executors repeat such a pass, and blocks run the original graph."""
    executor = network("blocked", "nothing", 16, True).simple_bind(mx.cpu(), data=(2, 16, SIDE, SIDE))
    gradient = mx.nd.ones(executor.outputs[0].shape)
    for training in (True, False):
        executor.forward(is_train=training)
    with pytest.raises(mx.MXNetError, match="'norm_backward': no forward pass in training wrote its signs"):
        backward(executor, gradient)


def test_input_that_changes_its_order_between_the_passes_is_read_in_the_first() -> None:
    """MXNet brings weights of inference passes into oneDNN's order where they stand, and a reader in C back."""
    shape, rng = (16, 16, 3, 3), np.random.RandomState(0)
    values, gradient = rng.normal(size=(2, *shape))
    executors = [rectified(mx.sym.var("data"), fused).simple_bind(mx.cpu(), data=shape) for fused in (True, False)]

    def block(array: mx.nd.NDArray) -> None:
        inputs = mx.nd.ones((2, 16, 8, 8))
        mx.nd.Convolution(inputs, array, kernel=(3, 3), num_filter=16, no_bias=True).wait_to_read()

    def make_plain(array: mx.nd.NDArray) -> None:
        check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(ctypes.c_void_p())))

    for first, second in ((make_plain, block), (block, make_plain)):
        for executor in executors:
            data = executor.arg_dict["data"]
            make_plain(data)  # MXNet writes into no other
            data[:] = values
            first(data)
            executor.forward(is_train=True)
            mx.nd.waitall()
            second(data)
            backward(executor, mx.nd.array(gradient))
        mine, stock = ([array.asnumpy() for array in executor.grad_arrays] for executor in executors)
        assert_close(mine, stock)


def blocks(count: int = 4) -> Symbol:
    x = mx.sym.var("data")
    for number in range(count):
        norm = mx.sym.BatchNorm(convolution(x, 16, name=f"conv{number}"), fix_gamma=False, name=f"norm{number}")
        x = mx.sym.Activation(norm, act_type="relu", name=f"act{number}")
    return x


def bound(on: bool, grad_req: Any = "write") -> mx.executor.Executor:
    symbol = echo.optimize(blocks(), strict=True, max_overhead=None) if on else blocks()
    executor = symbol.simple_bind(mx.cpu(), grad_req=grad_req, data=(2, 16, SIDE, SIDE))
    assert not on or sum("WithReLU" in node.op for node in executor._applied.graph.nodes) == 4
    return executor


@pytest.mark.parametrize("modes", [(False, True), (True, False), (False, False), (True, True)])
def test_executors_give_stock_gradients_in_all_modes(modes: tuple[bool, bool]) -> None:
    """Outside of training, oneDNN writes no signs."""
    assert_close(trained(bound(True), modes=modes), trained(bound(False), modes=modes))


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}])
def test_blocks_give_stock_gradients_when_recorded_in_inference(flags: dict[str, bool]) -> None:
    def gradients(on: bool) -> list[Any]:
        mx.random.seed(3)
        net = nn.HybridSequential(prefix="net_")
        for _ in range(4):
            net.add(nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
        net.initialize(mx.init.Xavier())
        net.hybridize(**flags)
        net = echo.optimize(net, strict=True, max_overhead=None) if on else net
        found: list[Any] = []
        for training in (True, False, True):
            data = mx.nd.random.normal(shape=(2, 3, SIDE, SIDE))
            with autograd.record(train_mode=training):
                out = (net(data) ** 2).sum()
            out.backward(train_mode=training)
            parameters = net.collect_params().values()
            found += [array.asnumpy() for array in (out, *(p.grad() for p in parameters if p.grad_req != "null"))]
        assert not on or any(plan.fused for plan in net._cached_op.plans.values())
        return found

    assert_close(gradients(True), gradients(False))


@pytest.mark.parametrize("grad_req", ["add", {"data": "null", "conv0_weight": "write", "norm2_gamma": "add"}])
def test_other_gradient_requests_give_stock_gradients(grad_req: Any) -> None:
    mine, stock = (bound(on, grad_req) for on in (True, False))
    for each in (mine, stock):
        trained(each)
    for name, gradient in stock.grad_dict.items():
        if gradient is not None:
            assert_close([mine.grad_dict[name].asnumpy()], [gradient.asnumpy()])


# What brings an infinity of its output's gradient to the same place in its input's.
IN_PLACE: dict[str, Callable[[Symbol, int], Symbol]] = {
    "nothing": lambda y, size: y,
    "a convolution": lambda y, size: mx.sym.Convolution(
        y, kernel=(1, 1), num_filter=size, num_group=size, no_bias=True
    ),
}


def overflowed(read: str, write: str, size: int, side: int, fused: bool, value: float) -> list[Any]:
    """Gradients where the output's is this value in some places where the output is zero, and where it is finite."""
    x = INPUTS[read](mx.sym.var("data", dtype="float32"), size)
    y = IN_PLACE[write](rectified(x, fused), size)
    block, rng = nn.SymbolBlock(y, mx.sym.var("data", dtype="float32")), np.random.RandomState(0)
    block.collect_params().initialize()
    data = mx.nd.array(rng.normal(size=(2, size, side, side)))
    block(data)
    parameters = [parameter for parameter in block.collect_params().values() if parameter.grad_req != "null"]
    for parameter in parameters:
        parameter.set_data(mx.nd.array(rng.normal(size=parameter.shape)))
    with autograd.record():
        output = block(data)
    overflowing, finite = rng.normal(size=(2, *output.shape))
    zeros = np.flatnonzero(output.asnumpy() == 0)
    overflowing.flat[[zeros[0], zeros[zeros.size // 2], zeros[-1]]] = value
    found = []
    for gradient in (overflowing, finite):  # the second finds the signs as the forward pass left them
        output.backward(mx.nd.array(gradient), retain_graph=True)
        found += [parameter.grad().asnumpy() for parameter in parameters]
    return found


@pytest.mark.every(5)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(("size", "side"), [(3, 7), (16, 8), (17, 8), (32, 64)])
@pytest.mark.parametrize("write", IN_PLACE)
@pytest.mark.parametrize("read", ["a variable", "blocked", "groups", "pooled"])
def test_overflowed_gradients_are_nan_where_those_of_mxnet_are(
    read: str, write: str, size: int, side: int, value: float
) -> None:
    """MXNet multiplies them by zero; oneDNN leaves them out."""
    mine, stock = (overflowed(read, write, size, side, fused, value) for fused in (True, False))
    assert any(np.isnan(array).any() for array in stock)
    for x, y in zip(mine, stock):
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
        assert_close([np.nan_to_num(x)], [np.nan_to_num(y)])


def test_overflowed_gradients_are_nan_without_avx2() -> None:
    """The signs are bytes there."""
    code = (
        "from tests.native.test_batch_norm import *\n"
        "assert install_hook() == ''\n"
        "for write in IN_PLACE:\n"
        "    test_overflowed_gradients_are_nan_where_those_of_mxnet_are('blocked', write, 16, 8, np.inf)\n"
    )
    environment = {**os.environ, "DNNL_MAX_CPU_ISA": "SSE41"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=Path(__file__).parents[2])
