"""Arrays written between forward and backward of an executor: an error where the plan reads them again."""

from __future__ import annotations

import contextlib
import gc
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.errors import ChangedInputError
from echo.runtime import backward_checks
from echo.runtime.executor import PlannedExecutor
from tests.support.training import arrays, assert_alive, assert_same
from tests.support.writes import NO_CHANGES, OPTIONS, WRITES, Write, _in_place

pytestmark = pytest.mark.usefixtures("cheap_planning")
S = mx.sym


def network() -> S.Symbol:
    hidden = S.sin(S.exp(S.var("data"), name="exp0"), name="sin0")
    hidden = S.FullyConnected(hidden, num_hidden=48, flatten=False, name="f1")
    hidden = S.tanh(S.LayerNorm(hidden, name="ln"), name="tanh1")
    hidden = S.FullyConnected(S.sin(S.exp(hidden)), num_hidden=48, flatten=False, name="f2")
    return S.sum(S.sin(S.exp(hidden)))


def normed(fix_gamma: bool) -> S.Symbol:
    hidden = S.var("data")
    for i in range(3):
        hidden = S.FullyConnected(hidden, num_hidden=48, flatten=False, name=f"fc{i}")
        hidden = S.BatchNorm(hidden, axis=2, fix_gamma=fix_gamma, name=f"bn{i}")
        hidden = S.sigmoid(S.tanh(hidden))
    return S.sum(hidden)


def bound(on: bool, symbol: S.Symbol | None = None, **options: Any) -> mx.executor.Executor:
    symbol = network() if symbol is None else symbol
    symbol = echo.optimize(symbol, **{**OPTIONS, **options}) if on else symbol
    executor = symbol.simple_bind(mx.cpu(), data=(8, 6, 16), grad_req="write")
    generator = np.random.RandomState(0)
    for _, array in sorted(executor.arg_dict.items()):
        array[:] = generator.randint(-8, 8, array.shape) / 16  # so that 1 can be added and taken away
    assert isinstance(executor, PlannedExecutor) == on
    return executor


def step(executor: mx.executor.Executor, between: Callable[[mx.executor.Executor], None]) -> dict[str, Any]:
    executor.forward(is_train=True)
    between(executor)
    executor.backward(mx.nd.ones(executor.outputs[0].shape))
    seen = arrays(executor)
    assert_alive(seen)
    return seen


def same_as_stock(between: Callable[[mx.executor.Executor], None], **options: Any) -> None:
    assert_same(step(bound(True, **options), between), step(bound(False), between))


@pytest.mark.parametrize("name", ["ln_gamma", "ln_beta", "data"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_to_what_is_read_again_is_an_error(write: Write, name: str) -> None:
    executor = bound(True)
    before = [array.asnumpy() for array in executor.grad_arrays]
    with pytest.raises(ChangedInputError, match=f"^'{name}' was written between .* plan with keep=.* .ECHO=0."):
        step(executor, lambda own: write(own.arg_dict[name]))
    mx.nd.waitall()
    assert all((old == new.asnumpy()).all() for old, new in zip(before, executor.grad_arrays))


@pytest.mark.parametrize("name", ["ln_gamma", "data"])
def test_the_next_step_is_right_again(name: str) -> None:
    def twice(executor: mx.executor.Executor, on: bool) -> dict[str, Any]:
        if on:
            with pytest.raises(ChangedInputError):
                step(executor, lambda own: _in_place(own.arg_dict[name]))
        else:
            _in_place(executor.arg_dict[name])
        return step(executor, lambda own: None)

    assert_same(twice(bound(True), True), twice(bound(False), False))


def test_the_names_to_keep_are_those_that_help() -> None:
    same_as_stock(lambda own: _in_place(own.arg_dict["ln_gamma"]), keep=("ln",))
    same_as_stock(lambda own: _in_place(own.arg_dict["data"]), keep=("exp0",))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_array_not_read_again_may_be_written(write: Write) -> None:
    same_as_stock(lambda own: write(own.arg_dict["f2_weight"]))


@pytest.mark.parametrize("write", NO_CHANGES.values(), ids=NO_CHANGES)
def test_writes_that_change_nothing_are_no_error(write: Write) -> None:
    same_as_stock(lambda own: [write(own.arg_dict[name]) for name in ("ln_gamma", "data")])


def test_executors_that_end_in_between_are_no_writes() -> None:
    def another(own: mx.executor.Executor) -> None:
        other = network().bind(mx.cpu(), dict(own.arg_dict))
        other.forward(is_train=False)[0].wait_to_read()
        before = backward_checks._library().version(own.arg_dict["ln_gamma"].handle)
        del other
        gc.collect()
        mx.nd.waitall()
        assert (
            backward_checks._library().version(own.arg_dict["ln_gamma"].handle) > before
        )  # MXNet counts it as a write

    same_as_stock(another)


def test_only_the_last_forward_pass_counts() -> None:
    def forward_again(own: mx.executor.Executor) -> None:
        _in_place(own.arg_dict["ln_gamma"])
        own.forward(is_train=True, data=own.arg_dict["data"] + 1)

    same_as_stock(forward_again)


def test_backward_without_forward_in_between_is_looked_at_too() -> None:
    executor = bound(True)
    step(executor, lambda own: None)
    executor.arg_dict["data"][:] = 0
    with pytest.raises(ChangedInputError, match="'data'"):
        executor.backward(mx.nd.ones(executor.outputs[0].shape))


@pytest.mark.parametrize("mode", [True, False])
def test_a_forward_pass_that_backward_repeats(mode: bool) -> None:
    executor = bound(True, normed(fix_gamma=False))
    executor.forward(is_train=mode)
    executor.backward(mx.nd.ones(1), is_train=not mode)
    executor.forward(is_train=mode)
    _in_place(executor.arg_dict["fc1_weight"])
    with pytest.raises(ChangedInputError, match=r"'fc1_weight' .* repeats the forward pass"):
        executor.backward(mx.nd.ones(1), is_train=not mode)


def test_an_operator_that_fails_shows_its_own_error() -> None:
    def damage(executor: mx.executor.Executor) -> None:
        broken = mx.nd.linalg.potrf(mx.nd.array([[0, 1], [1, 0]]) - 1)
        mx.nd.broadcast_add(executor.arg_dict["ln_gamma"], broken.sum(), out=executor.arg_dict["ln_gamma"])

    with pytest.raises(mx.MXNetError, match="potrf"):
        step(bound(True), damage)
    executor = bound(True)
    damage(executor)
    executor.forward(is_train=True)  # the engine leaves out what reads a broken array: nothing may wait for that
    executor.backward(mx.nd.ones(1))
    with pytest.raises(mx.MXNetError, match="potrf"):
        mx.nd.waitall()


def test_fused_operators_compute_from_their_inputs() -> None:
    def cell() -> S.Symbol:
        cell = mx.rnn.LSTMCell(32, prefix="l_")
        outputs, _ = cell.unroll(6, S.var("data"), layout="TNC", merge_outputs=True)
        return S.sum(S.sin(outputs))

    def made() -> mx.executor.Executor:
        executor = echo.optimize(cell(), strict=True).simple_bind(mx.cpu(), data=(6, 8, 32), grad_req="write")
        assert executor._applied.fuses
        return executor

    said = []
    for name in cell().list_arguments():
        executor = made()
        try:
            executor.forward(is_train=True)
            executor.arg_dict[name][:] = 0.1
            executor.backward(mx.nd.ones(executor.outputs[0].shape))
        except ChangedInputError as error:
            said.append(str(error))
    assert said
    assert all("fuse=False" in each for each in said)


def masked_attention() -> S.Symbol:
    """The keys reach the fused operator as a copy, which keeps the order of arguments."""
    scores = S.broadcast_add(S.batch_dot(S.var("q"), S.var("k"), transpose_b=True), S.BlockGrad(S.var("m")))
    return S.batch_dot(S.softmax(scores), S.var("v"))


def cross_entropy() -> S.Symbol:
    """The label reaches it as float32."""
    return S.pick(S.log_softmax(S.FullyConnected(S.var("x"), num_hidden=600, name="fc")), S.var("label"))


@pytest.mark.usefixtures("free_workspaces")
@pytest.mark.parametrize(
    ("symbol", "shapes", "name"),
    [
        (masked_attention(), {"q": (8, 33, 7), "k": (8, 41, 7), "v": (8, 41, 5), "m": (1, 33, 41)}, "k"),
        (cross_entropy(), {"x": (50, 30), "label": (50,)}, "label"),
    ],
    ids=["attention", "cross entropy"],
)
def test_input_that_fused_operator_copies_is_watched(
    symbol: S.Symbol, shapes: dict[str, tuple[int, ...]], name: str
) -> None:
    executor = echo.optimize(symbol, strict=True).simple_bind(mx.cpu(), grad_req="write", **shapes)
    assert executor._applied.fuses
    executor.forward(is_train=True)
    executor.arg_dict[name][:] = 1.5
    with pytest.raises(ChangedInputError, match=f"'{name}' was written"):
        executor.backward(mx.nd.ones(executor.outputs[0].shape))


def conv(data: tuple[int, ...]) -> mx.executor.Executor:
    hidden = S.var("data")
    for i in range(3):
        hidden = S.Convolution(hidden, kernel=(3, 3), num_filter=32, pad=(1, 1), name=f"c{i}")
        hidden = S.tanh(S.sin(hidden))
    executor = echo.optimize(S.sum(hidden), recompute=("c1",), **OPTIONS).simple_bind(mx.cpu(), data=data)
    assert "Convolution" in executor._applied.marked
    for array in executor.arg_arrays:
        array[:] = mx.nd.random.normal(shape=array.shape)
    return executor


def test_another_order_of_elements_is_no_write() -> None:
    """In an inference pass oneDNN puts weights into its own order, in place."""
    executor = conv((2, 16, 8, 8))
    weight, bias = (executor.arg_dict[f"c1_{name}"] for name in ("weight", "bias"))

    def convolve() -> None:
        mx.nd.Convolution(mx.nd.ones((2, 32, 8, 8)), weight, bias, kernel=(3, 3), pad=(1, 1), num_filter=32)

    for inference in (convolve, lambda: executor.forward(is_train=False)):  # the second pass is repeated by backward
        executor.forward(is_train=True)
        before = backward_checks._library().version(weight.handle)
        for _ in range(3):
            inference()
        mx.nd.waitall()
        assert backward_checks._library().version(weight.handle) > before
        executor.backward(mx.nd.ones(1))
        weight[:] = weight + 0  # in MXNet's own order again
    executor.backward(mx.nd.ones(1))
    executor.forward(is_train=True)
    weight[3, 2, 1, 0] += 1
    with pytest.raises(ChangedInputError, match="'c1_weight'"):
        executor.backward(mx.nd.ones(1))


def test_long_arrays_are_judged_by_the_count_alone() -> None:
    """After the first passes: until then the inference that gave parameters their shapes may be at work."""
    array = mx.nd.ones((2048, 1024))
    watch = backward_checks.InputWatch(backward_checks._library(), [0], ["long"], True)
    for is_first in (True, True, False):
        record = watch.record([array])
        backward_checks.refuse_changed(record)
        array += 0
        with contextlib.nullcontext() if is_first else pytest.raises(ChangedInputError, match="long"):
            backward_checks.refuse_changed(record)
        array[3, 4] += 1
        with pytest.raises(ChangedInputError, match="long"):
            backward_checks.refuse_changed(record)


def test_long_weights_that_inference_left_in_its_own_order_are_no_write() -> None:
    """The next training pass puts them back, after it has begun."""
    data, weight = mx.nd.ones((1, 512, 4, 4)), mx.nd.random.normal(shape=(512, 512, 3, 3))
    options = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 512, "no_bias": True}
    watch = backward_checks.InputWatch(backward_checks._library(), [0], ["long"], True)
    for _ in range(4):
        mx.nd.Convolution(data, weight, **options)
        mx.nd.waitall()
        record = watch.record([weight])
        before = backward_checks._library().version(weight.handle)
        with mx.autograd.record():
            mx.nd.Convolution(data, weight, **options)
        mx.nd.waitall()
        assert backward_checks._library().version(weight.handle) > before
        backward_checks.refuse_changed(record)
        weight += 0.5
        with pytest.raises(ChangedInputError, match="long"):
            backward_checks.refuse_changed(record)


def test_executor_that_reads_nothing_again_watches_nothing() -> None:
    executor = bound(True, keep=("ln", "exp0"))
    assert executor._applied.marked
    assert executor._applied.watch is None
    executor.forward(is_train=True)
    assert executor._records == (None, None)


def test_gammas_that_are_not_read_are_not_watched() -> None:
    executor = bound(True, normed(fix_gamma=True))
    step(executor, lambda own: own.arg_dict["bn1_gamma"].__setitem__(slice(None), 3))
    with pytest.raises(ChangedInputError, match="'bn1_beta'"):
        step(executor, lambda own: own.arg_dict["bn1_beta"].__setitem__(slice(None), 3))
