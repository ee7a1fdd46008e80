"""Floating-point operations of heavy operators, counted by hand."""

from __future__ import annotations

import pytest

from echo.estimators.roofline import work
from echo.ir.graph import PREFIX, VARIABLE, Entry
from echo.ir.ops import ops_with
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode

Shape = tuple[int, ...]


def graph(op: str, inputs: list[Shape], output: Shape, gradient: bool) -> TrainingGraph:
    nodes = [TrainingNode(VARIABLE, f"x{number}", (TensorType(shape),)) for number, shape in enumerate(inputs)]
    entries = tuple(map(Entry, range(len(inputs))))
    nodes.append(TrainingNode(op, "op", (TensorType(output),), entries))
    if gradient:
        types = tuple(map(TensorType, inputs))
        deps = (len(inputs),)
        nodes.append(TrainingNode(f"_backward_{op}", "gradient", types, entries, deps, forward=False))
    return TrainingGraph(tuple(nodes), (Entry(len(nodes) - 1),), 0 if gradient else 1, 0)


COUNTED: list[tuple[str, list[Shape], Shape, int]] = [
    ("FullyConnected", [(8, 32), (16, 32), (16,)], (8, 16), 8 * 16 * 32),
    ("Convolution", [(2, 3, 8, 8), (16, 3, 3, 3)], (2, 16, 8, 8), 2 * 16 * 8 * 8 * 3 * 3 * 3),
    ("Deconvolution", [(2, 16, 8, 8), (16, 3, 3, 3)], (2, 3, 8, 8), 2 * 16 * 8 * 8 * 3 * 3 * 3),
    ("batch_dot", [(4, 8, 32), (4, 32, 16)], (4, 8, 16), 4 * 8 * 32 * 16),
    ("dot", [(8, 32), (32, 16)], (8, 16), 8 * 32 * 16),
    ("_echo_attention", [(4, 10, 32), (4, 128, 32), (4, 128, 64)], (4, 10, 64), 4 * 10 * 128 * (32 + 64)),
    ("_echo_softmax_output", [(8, 32), (100, 32), (100,), (8,)], (8, 100), 8 * 32 * 100),
    ("_echo_linear_cross_entropy", [(8, 32), (100, 32), (100,), (8,)], (8,), 8 * 32 * 100),
    ("_echo_gru_layer", [(5, 8, 16), (96, 16), (96,), (96, 32)], (5, 8, 32), 5 * 8 * 96 * (16 + 32)),
    ("_echo_rnn_layer", [(5, 8, 16), (32, 16), (32,), (32, 32)], (5, 8, 32), 5 * 8 * 32 * (16 + 32)),
    ("_echo_lstm_layer", [(5, 8, 16), (128, 16), (128,), (128, 32)], (5, 8, 32), 5 * 8 * 128 * (16 + 32)),
]


@pytest.mark.parametrize(("op", "inputs", "output", "expected"), COUNTED)
def test_flops(op: str, inputs: list[Shape], output: Shape, expected: int) -> None:
    """Two for each product and its sum; twice as many in the gradient, which is two such products."""
    forward, backward = graph(op, inputs, output, False), graph(op, inputs, output, True)
    assert work(forward, forward.nodes[-1]).flops == pytest.approx(2 * expected)
    assert work(backward, backward.nodes[-1]).flops == pytest.approx(4 * expected)


def test_each_heavy_fused_operator_is_counted() -> None:
    fused = ops_with(lambda spec: spec.heavy and spec.gradient_reads is not None)
    assert fused == {op for op, *_ in COUNTED if op.startswith(PREFIX)}
