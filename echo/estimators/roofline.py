"""Seconds of operators that were not measured: launch time plus work over a rate (Williams et al., 2009)."""

from __future__ import annotations

from dataclasses import dataclass

from echo.estimators.signatures import forward_node
from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode


@dataclass(frozen=True)
class Work:
    """Floating-point operations (0 for operators that only move data) and bytes read and written."""

    flops: float
    bytes: float


def work(training: TrainingGraph, node: TrainingNode) -> Work:
    """The operations of a node, and the bytes that it reads and writes."""
    forward = forward_node(training, node)
    moved = sum(tensor.bytes for tensor in node.outputs)
    if spec((forward or node).op).gathers:
        moved = 2 * min([moved, *(training.type_of(entry).bytes for entry in node.inputs[:1] if forward)])
    else:
        read = (entry for position, entry in enumerate(node.inputs) if position not in node.ignored)
        moved += sum(training.type_of(entry).bytes for entry in read)
    # the gradients of a product are two products
    return Work(_flops(training, forward) * 2 if forward else _flops(training, node), max(moved, 1))


def _flops(training: TrainingGraph, node: TrainingNode) -> float:
    formula = spec(node.op).flops
    if formula is None or len(node.inputs) < 2:
        return 0.0
    return formula([training.type_of(entry).shape for entry in node.inputs], node.outputs[0].shape)
