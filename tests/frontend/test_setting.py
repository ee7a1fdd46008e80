"""What patterns are told of a bind: arguments without gradients, whether kernels may draw, and whether RNNs do."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from echo.frontend.setting import COPIES_VARIABLE, RNN_VARIABLES, setting_of
from echo.frontend.symbols import Binding


def binding(*requests: str) -> Binding:
    return Binding(((2,),) * len(requests), ("float32",) * len(requests), (), (), requests)


def test_arguments_without_gradients() -> None:
    setting = setting_of(("data", "weight", "mask"), binding("null", "write", "null"), "cpu")
    assert setting.untrained == {"data", "mask"}


@pytest.mark.parametrize(("copies", "device", "draws"), [("", "cpu", True), ("1", "cpu", True), ("2", "cpu", False),
                                                          ("", "gpu", False)])  # fmt: skip
def test_kernels_draw_where_one_generator_does(
    copies: str, device: str, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if copies:
        monkeypatch.setenv(COPIES_VARIABLE, copies)
    else:
        monkeypatch.delenv(COPIES_VARIABLE, raising=False)
    assert setting_of(("data",), binding("write"), device).draws is draws


@pytest.mark.parametrize(("value", "device", "none"), [(None, "cpu", True), ("", "cpu", True), ("1", "cpu", True),
                                                       ("0", "cpu", False), (None, "gpu", False)])  # fmt: skip
@pytest.mark.parametrize("name", RNN_VARIABLES)
def test_rnns_drop_nothing_where_onednn_runs_them(
    name: str, value: str | None, device: str, none: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in RNN_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    assert setting_of(("data",), binding("write"), device).onednn_rnn is none


def trained(mode: str, bidirectional: bool, p: float) -> list[Any]:
    """The outputs and gradients of MXNet's own RNN operator in a training step, and what is drawn behind it."""
    states = {"state_cell": mx.sym.var("c")} if mode == "lstm" else {}
    layers = mx.sym.RNN(mx.sym.var("x"), mx.sym.var("w"), mx.sym.var("h"), **states, mode=mode, num_layers=3,
                        state_size=5, bidirectional=bidirectional, p=p, state_outputs=True)  # fmt: skip
    executor = layers.simple_bind(mx.cpu(), x=(4, 3, 6))
    values = np.random.RandomState(0)
    for array in executor.arg_arrays:
        array[:] = values.uniform(-1, 1, array.shape)
    mx.random.seed(3)
    outputs = executor.forward(is_train=True)
    executor.backward([mx.nd.ones_like(output) for output in outputs])
    drawn = mx.nd.random.uniform(shape=(4,))
    return [array.asnumpy() for array in (*outputs, *executor.grad_arrays, drawn)]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_mxnets_own_onednn_rnn_there_and_something_elsewhere(
    mode: str, bidirectional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MXNET_USE_MKLDNN_RNN", raising=False)
    plain = trained(mode, bidirectional, 0.0)
    for expected, got in zip(plain, trained(mode, bidirectional, 0.5)):
        np.testing.assert_array_equal(expected, got)
    monkeypatch.setenv("MXNET_USE_MKLDNN_RNN", "0")
    assert not np.allclose(trained(mode, bidirectional, 0.0)[0], trained(mode, bidirectional, 0.5)[0])
