"""Writes between forward and backward are found on a GPU, too; calls that only look like writes are not."""

from __future__ import annotations

from typing import Iterator

import mxnet as mx
import numpy as np
import pytest

import echo
from tests.fake_gpu import device

GPU = mx.gpu(0)
SHAPES = {"data": (8, 16, 16, 16)}


@pytest.fixture(autouse=True)
def _without_kernels() -> Iterator[None]:
    with device.without_kernels():
        yield


def network() -> mx.sym.Symbol:
    x = mx.sym.var("data")
    for i in range(3):
        x = mx.sym.Convolution(x, num_filter=16, kernel=(3, 3), pad=(1, 1), no_bias=True, name=f"conv{i}")
        x = mx.sym.Activation(mx.sym.BatchNorm(x, fix_gamma=False, name=f"norm{i}"), act_type="relu")
    return mx.sym.MakeLoss(mx.sym.sum(x))


def bound(symbol: mx.sym.Symbol) -> mx.executor.Executor:
    planned = echo.optimize(symbol, strict=True, max_overhead=None, fuse=False)
    executor = planned.simple_bind(GPU, grad_req="write", **SHAPES)
    assert any(one.op == "BatchNorm" for one in planned.plans[-1].recomputed), "gamma is read again"
    for array in [*executor.arg_arrays, *executor.aux_arrays]:
        array[:] = np.ones(array.shape, np.float32)
    return executor


def test_an_executor_that_shared_parameters_may_go_away() -> None:
    """To MXNet's engine its end is a write to all that it read."""
    symbol = network()
    training = bound(symbol)
    for _ in range(3):
        predicting = symbol.bind(GPU, training.arg_dict, grad_req="null", aux_states=training.aux_dict)
        training.forward(is_train=True)
        predicting.forward(is_train=False)
        predicting.outputs[0].wait_to_read()
        del predicting
        mx.nd.waitall()
        training.backward()
    mx.nd.waitall()


def test_a_parameter_that_is_written_is_found() -> None:
    executor = bound(network())
    executor.forward(is_train=True)
    executor.arg_dict["norm0_gamma"][:] = np.full(16, 2, np.float32)
    with pytest.raises(echo.ChangedInputError, match="norm0_gamma"):
        executor.backward()


def test_writing_the_same_numbers_changes_nothing() -> None:
    executor = bound(network())
    executor.forward(is_train=True)
    executor.arg_dict["norm0_gamma"][:] = np.ones(16, np.float32)
    executor.backward()
    mx.nd.waitall()
