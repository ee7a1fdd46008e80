"""MXNet's RNN operator: which layers are found, and why others are not."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Entry, Setting
from echo.ir.training_node import TensorType
from echo.passes.patterns.apply import fusion_blocker
from echo.passes.patterns.graph_view import Fusion, View
from echo.passes.patterns.legality import numbered, ordered
from echo.passes.patterns.rnn import RNN
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
def test_rnn_operator_of_every_mode_is_found(mode: str) -> None:
    assert_found(lambda: operator(mode), RNN.name)


@pytest.mark.parametrize(("mode", "own", "onednn"), [("lstm", 6, 12), ("gru", 5, 10), ("rnn_tanh", 2, 5)])
def test_onednn_keeps_more_next_to_planned_memory(mode: str, own: int, onednn: int) -> None:
    graph = graph_of(operator(mode, layers=2))
    number = len(graph.nodes) - 1
    for setting, kept in ((Setting(), own), (Setting(onednn_rnn=True), onednn)):
        fusion = RNN.match(View(graph, setting), number)
        assert isinstance(fusion, Fusion)
        assert fusion.hidden_bytes == (2 * kept, Entry(number, 0))


def test_dropout_that_is_never_drawn_is_none_and_in_float32_alone() -> None:
    graph = graph_of(operator(layers=2, p=0.2))
    number = len(graph.nodes) - 1
    fusion = RNN.match(View(graph, Setting(onednn_rnn=True)), number)
    assert isinstance(fusion, Fusion)
    assert (fusion.dtypes, fusion.label) == (
        ("float32",), "an RNN operator of 2 LSTM layers, whose dropout MXNet leaves out on CPUs"
    )  # fmt: skip
    for entry, text in fusion.shapes.items():
        assert "B" in text
        assert entry in graph.nodes[number].inputs
    sizes = {"T": 3, "B": 2, "I": H, "H": H, "2": 2}
    shapes = {entry: tuple(sizes[name] for name in text.split(",")) for entry, text in fusion.shapes.items()}
    single, half = ({entry: TensorType(shape, flag) for entry, shape in shapes.items()} for flag in (0, 2))
    assert fusion_blocker(fusion, half) == "expected arrays of one type, float32, got float16"
    assert fusion_blocker(fusion, single) == ""


def test_a_dropout_of_the_same_name_is_not_taken_for_it() -> None:
    dropped = mx.sym.Dropout(operator(layers=2, p=0.2), p=0.5, name="rnn")
    graph = numbered(graph_of(dropped))
    without = numbered(graph_of(operator(layers=2)))
    assert ordered(without, graph) is None
