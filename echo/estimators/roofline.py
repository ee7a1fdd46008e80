"""Seconds of operators that were not measured: launch time plus work over a rate (Williams et al., 2009)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

from echo.estimators.signatures import forward_node
from echo.ir.ops import HEAVY
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode

# Operators whose time follows their floating-point operations.
HEAVY_OPS = (HEAVY | {"RNN"}) - {"Correlation"}
_GATHER_OPS = frozenset({"Embedding", "take", "gather_nd", "pick"})


@dataclass(frozen=True)
class Work:
    """Floating-point operations (0 for operators that only move data) and bytes read and written."""

    flops: float
    bytes: float


def work(training: TrainingGraph, node: TrainingNode) -> Work:
    """What a node computes and moves."""
    forward = forward_node(training, node)
    moved = sum(kind.bytes for kind in node.outputs)
    if (forward or node).op in _GATHER_OPS:
        moved = 2 * min([moved, *(training.type_of(entry).bytes for entry in node.inputs[:1] if forward)])
    else:
        read = (entry for position, entry in enumerate(node.inputs) if position not in node.ignored)
        moved += sum(training.type_of(entry).bytes for entry in read)
    # the gradients of a product are two products
    return Work(_flops(training, forward) * 2 if forward else _flops(training, node), max(moved, 1))


def _flops(training: TrainingGraph, node: TrainingNode) -> float:
    if node.op not in HEAVY_OPS or len(node.inputs) < 2:
        return 0.0
    return FORMULAS.get(node.op, _product)([training.type_of(entry) for entry in node.inputs], node.outputs[0])


def _convolution(inputs: Sequence[TensorType], output: TensorType) -> float:
    weight = inputs[1]
    return 2.0 * output.elements * weight.elements / max(1, weight.shape[0])


def _deconvolution(inputs: Sequence[TensorType], _: TensorType) -> float:
    weight = inputs[1]
    return 2.0 * inputs[0].elements * weight.elements / max(1, weight.shape[0])


def _dense(inputs: Sequence[TensorType], output: TensorType) -> float:
    return 2.0 * output.elements * inputs[1].shape[-1]


def _attention(inputs: Sequence[TensorType], _: TensorType) -> float:
    queries, keys, values = inputs[:3]  # each query times all keys, and its weights times all values
    return 2.0 * queries.shape[1] * (keys.elements + values.elements)


def _lstm_layer(inputs: Sequence[TensorType], _: TensorType) -> float:
    x, wi, wh = inputs[0], inputs[1], inputs[3]
    return 2.0 * (wi.elements + wh.elements) * x.elements / x.shape[-1]


def _rnn(inputs: Sequence[TensorType], _: TensorType) -> float:
    return 2.0 * inputs[1].elements * inputs[0].elements / max(1, inputs[0].shape[-1])


def _product(inputs: Sequence[TensorType], output: TensorType) -> float:
    """(batch, m, k) times (batch, k, n): the product of the inputs over the output is batch * k * k."""
    first, second = inputs[:2]
    batch = first.shape[0] if len(first.shape) > 2 else 1
    inner = math.sqrt(first.elements * second.elements / max(1, output.elements * batch))
    return 2.0 * output.elements * inner


# Of heavy operators that are no plain products; each fused one has to have its own.
FORMULAS: Mapping[str, Callable[[Sequence[TensorType], TensorType], float]] = {
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "FullyConnected": _dense,
    "RNN": _rnn,
    "_echo_attention": _attention,
    "_echo_lstm_layer": _lstm_layer,
    "_echo_softmax_output": _dense,
}
