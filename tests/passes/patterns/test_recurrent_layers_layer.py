"""What layers of every kind of cell have in common: which steps are one layer, and which order they have."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.passes.patterns import PATTERNS
from echo.passes.patterns.apply import find, fused_at
from tests.passes.patterns.near_misses import H, T, found_in, var

CELLS = {"lstm_layer": mx.rnn.LSTMCell, "gru_layer": mx.rnn.GRUCell, "rnn_layer": mx.rnn.RNNCell}


def unrolled(cell: Any, steps: int = T) -> Any:
    return mx.sym.Group(cell.unroll(steps, var("x"), layout="NTC", merge_outputs=False)[0])


@pytest.mark.parametrize("name", CELLS)
def test_layers_on_each_other_are_told_apart(name: str) -> None:
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(3):
        stack.add(CELLS[name](H, prefix=f"l{layer}_"))
    assert found_in(lambda: unrolled(stack))[0] == [name] * 3


@pytest.mark.parametrize("name", CELLS)
def test_one_step_is_no_layer(name: str) -> None:
    assert name not in found_in(lambda: unrolled(CELLS[name](H, prefix="c_"), 1))[0]


@pytest.mark.parametrize("name", CELLS)
def test_an_input_that_depends_on_the_state_is_no_layer(name: str) -> None:
    def fed() -> Any:
        cell, h = CELLS[name](H, prefix="c_"), var("x")
        states = cell.begin_state()
        for _ in range(T):
            h, states = cell(2 * h, states)
        return h

    assert name in PATTERNS
    assert name not in found_in(fed)[0]


@pytest.mark.parametrize("name", CELLS)
def test_weights_that_change_are_no_layer(name: str) -> None:
    def changing() -> Any:
        cells = [CELLS[name](H, prefix=prefix) for prefix in ("a_", "b_")]
        steps = mx.sym.SliceChannel(var("x"), num_outputs=T, axis=1, squeeze_axis=True)
        states, output = cells[0].begin_state(), None
        for number in range(T):
            output, states = cells[number % 2](steps[number], states)
        return output

    assert name not in found_in(changing)[0]


@pytest.mark.parametrize("name", CELLS)
def test_both_directions_read_one_array(name: str) -> None:
    """Of the second layer, too, whose inputs are concatenated step by step; each then has its direction."""
    x: Any = list(mx.sym.SliceChannel(var("x"), num_outputs=T, axis=0, squeeze_axis=True))
    for layer in range(2):
        cells = [CELLS[name](H, prefix=f"l{layer}_{way}_") for way in "fb"]
        x = mx.rnn.BidirectionalCell(*cells).unroll(T, x, merge_outputs=False)[0]
    graph = graph_of(mx.sym.Group(x))
    fused_graph = fused_at(graph, [(fusion.pattern, fusion.anchor) for fusion in find(graph)[0]], copies=False)
    layers = [node for node in fused_graph.nodes if node.op == "_echo_" + name]
    assert [node.attrs["reverse"] for node in layers] == ["0", "1"] * 2
    assert layers[0].inputs[0] == layers[1].inputs[0]
    assert layers[2].inputs[0] == layers[3].inputs[0]
    assert not {node.op for node in fused_graph.nodes} & {"stack", "reverse"}
