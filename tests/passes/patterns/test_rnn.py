"""MXNet's RNN operator: which layers are found, and why others are not."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

from echo.passes.patterns import rnn
from tests.passes.patterns.near_misses import H, Miss, Symbol, assert_found, assert_missed, var


def operator(mode: str = "lstm", layers: int = 1, **more: Any) -> Symbol:
    states = [var("h"), *([var("c")] if mode == "lstm" else [])]
    return mx.sym.RNN(var("x"), var("w"), *states, mode=mode, num_layers=layers, state_size=H, name="rnn", **more)


def lengths() -> Symbol:
    return mx.sym.RNN(var("x"), var("w"), var("h"), sequence_length=var("n"), use_sequence_length=True, mode="gru",
                      num_layers=1, state_size=H, name="rnn")  # fmt: skip


MISSES: dict[str, Miss] = {
    "RNN with lengths": (lengths, "an RNN operator with sequence lengths"),
    "RNN with dropout": (lambda: operator(layers=2, p=0.2), "an RNN operator with dropout between its layers"),
    "RNN with a projection": (lambda: operator(projection_size=2), "an RNN operator with projection_size"),
    "RNN with a clipped state": (
        lambda: operator(lstm_state_clip_min=-1, lstm_state_clip_max=1), "an RNN operator with lstm_state_clip_min"
    ),
    "RNN both ways, packed": (
        lambda: operator(bidirectional=True), "a bidirectional RNN operator with packed parameters"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_without_the_difference_it_is_found(mode: str) -> None:
    assert_found(lambda: operator(mode), rnn.NAME)
