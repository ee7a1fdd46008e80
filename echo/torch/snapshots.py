"""Copies of small inputs, made at the start of a step, that operators read when they run again.

Eager mode reads a bias, a scale or a mask of positions in the forward pass alone, and a program may change it before
the backward pass: through ``.data`` or NumPy, which torch does not see. What runs again would then come to other bits.
So it reads a copy, which lives as a saved value does, and which plans count as one. Gradients read the input itself, as
in eager mode. In large inputs, as weights of products are, a copy would cost what the plan is to save: they have none.
"""

from __future__ import annotations

import torch
from torch import fx

from echo.ir.training_graph import TrainingGraph
from echo.torch.storages import allocated, hint

# Of an input, at most. The copies of a plan then come to 0.7 % of the peak or less on the models of the benchmark.
# Mostly weights of products and of embeddings are larger there.
MOST_BYTES = 1 << 16
OPERATOR = "input snapshot"  # of their nodes; no operator of torch has a space in its name
REASON = "a copy of an input, which the program may change before the backward pass"
_SUFFIX = "_snapshot"


def snapshot_bytes(node: fx.Node) -> int:
    """The bytes of the copy of an input; 0 where it has none, as it is large, or a copy has other strides."""
    value = node.meta.get("val")
    if node.op != "placeholder" or not isinstance(value, torch.Tensor) or value.is_conj() or value.is_neg():
        return 0
    elements = 1
    for stride, size in sorted((hint(stride), hint(size)) for stride, size in zip(value.stride(), value.shape)):
        if size != 1 and stride != elements:
            return 0
        elements *= size
    size = elements * value.element_size()
    return allocated(size, value.device) if size <= MOST_BYTES else 0


def snapshot_name(node: fx.Node) -> str:
    """The name of the copy of an input."""
    return f"{node.name}{_SUFFIX}"


def reads_snapshot(training: TrainingGraph, number: int) -> bool:
    """Whether a node reads a snapshot: eager mode runs it in the forward pass."""
    return any(training.nodes[entry.node].op == OPERATOR for entry in training.nodes[number].inputs)


def write_snapshot(graph: fx.Graph, node: fx.Node, read: fx.Node) -> fx.Node:
    """Appends the copy of an input, which is ``read`` in this graph; torch leaves it out where nothing reads it."""
    new = graph.create_node("call_function", torch.ops.aten.clone.default, (read,), {}, snapshot_name(node))
    value = node.meta["val"]
    mode = getattr(value, "fake_mode", None)
    if mode is None:
        new.meta["val"] = value.clone()
    else:
        with mode:
            new.meta["val"] = value.clone()
    if "tensor_meta" in node.meta:
        new.meta["tensor_meta"] = node.meta["tensor_meta"]
    new.meta["partitioner_tag"] = "is_forward"
    return new
