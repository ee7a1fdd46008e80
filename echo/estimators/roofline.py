"""Seconds of operators that were not measured: launch time plus work over a rate (Williams et al., 2009)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from echo.estimators.signatures import forward_node
from echo.ir.ops import HEAVY
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode

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
    first, second = (training.type_of(entry) for entry in node.inputs[:2])
    result = node.outputs[0].elements
    if node.op == "Convolution":
        return 2.0 * result * second.elements / max(1, second.shape[0])
    if node.op == "Deconvolution":
        return 2.0 * first.elements * second.elements / max(1, second.shape[0])
    if node.op == "FullyConnected":
        return 2.0 * result * second.shape[-1]
    if node.op == "_echo_softmax_output":
        return 2.0 * result * second.shape[-1]
    if node.op == "_echo_lstm_layer":
        return 2.0 * (second.elements + training.type_of(node.inputs[3]).elements) * first.elements / first.shape[-1]
    if node.op == "RNN":
        return 2.0 * second.elements * first.elements / max(1, first.shape[-1])
    # (batch, m, k) times (batch, k, n): the product of the inputs over the output is batch * k * k
    batch = first.shape[0] if len(first.shape) > 2 else 1
    inner = math.sqrt(first.elements * second.elements / max(1, result * batch))
    return 2.0 * result * inner
