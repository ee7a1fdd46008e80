"""Vanilla RNN layers: whole ones are found, each with its activation, and not where something inside is read."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.passes.patterns.recurrent_layers import RNN_LAYER
from tests.passes.patterns.near_misses import H, T, found_in, var


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_layer_of_which_an_inner_map_is_read_stays(activation: str) -> None:
    outputs, states = mx.rnn.RNNCell(H, activation=activation, prefix="cell_").unroll(T, var("x"), layout="NTC")
    whole = mx.sym.Group([*outputs, *states])
    assert found_in(lambda: whole)[0] == [RNN_LAYER.name]
    found, missed = found_in(lambda: mx.sym.Group([whole, whole.get_internals()["cell_t1_i2h_output"]]))
    assert found == []
    assert any(reason.endswith("is read from outside") for reason in missed)


def test_another_activation_is_no_layer() -> None:
    outputs, _ = mx.rnn.RNNCell(H, activation="sigmoid", prefix="cell_").unroll(T, var("x"), layout="NTC")
    assert found_in(lambda: mx.sym.Group(outputs))[0] == []


def test_steps_of_two_activations_are_no_layer() -> None:
    weights, h = [var(name) for name in ("wi", "bi", "wh", "bh")], var("h0")
    for step in range(T):
        x = mx.sym.FullyConnected(var(f"x{step}"), *weights[:2], num_hidden=H)
        s = mx.sym.FullyConnected(h, *weights[2:], num_hidden=H)
        h = mx.sym.Activation(x + s, act_type="relu" if step % 2 else "tanh")
    assert found_in(lambda: h)[0] == []
