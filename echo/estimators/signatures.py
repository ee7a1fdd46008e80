"""Signatures: nodes of a training graph with equal operator, attributes, types and oneDNN layouts cost the same."""

from __future__ import annotations

from collections import Counter
from typing import AbstractSet

from echo.ir.graph import VARIABLE, Entry
from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode

_BACKWARD = "_backward_"
_UNROLLED = 4  # operators alike that read one weight: steps of a layer, and not two layers that share one


def signature(
    training: TrainingGraph,
    number: int,
    blocked: AbstractSet[int] | None = None,
    unrolled: AbstractSet[int] | None = None,
) -> str:
    """A stable key of what a node computes: op, attributes that matter, types of inputs and outputs. No names.

    ``blocked`` and ``unrolled`` are what `blocked_nodes` and `unrolled_nodes` return, which are computed here if they
    are not given.
    """
    node = training.nodes[number]
    attrs = attributes(training, node)
    blocked = blocked_nodes(training) if blocked is None else blocked
    unrolled = unrolled_nodes(training) if unrolled is None else unrolled
    inputs = ";".join(f"{training.type_of(entry)}{'~' * is_blocked(training, entry, blocked)}" for entry in node.inputs)
    outputs = ";".join(map(str, node.outputs))
    options = ",".join(f"{key}={attrs[key]}" for key in sorted(attrs))
    return f"{node.op}({inputs})->{outputs}{{{options}}}{'*' * (number in unrolled)}"


def attributes(training: TrainingGraph, node: TrainingNode) -> dict[str, str]:
    """The operator's own attributes: those of the user's node, for its gradient too; annotations left out."""
    source = forward_node(training, node) or node
    return {key: text for key, text in source.attrs.items() if not key.startswith("__")}


def forward_node(training: TrainingGraph, node: TrainingNode) -> TrainingNode | None:
    """The forward node that a gradient node belongs to; None for forward nodes and sums of gradients."""
    if node.forward or not node.control_deps or not node.op.startswith(_BACKWARD):
        return None
    return training.nodes[node.control_deps[0]]


def unrolled_nodes(training: TrainingGraph) -> frozenset[int]:
    """The products of unrolled layers: they find their weight in the caches, where the steps before left it.

    Those of DeepSpeech2, with weights of up to 6.3 MB, took 0.65 times what they take from memory. Their gradients are
    no faster for it: they write the gradient of the weight, which MXNet adds to a sum.
    """
    weights = {
        number: (node.op, node.inputs[1].node)
        for number, node in enumerate(training.nodes)
        if node.forward and spec(node.op).has_parameters and spec(node.op).flops is not None and len(node.inputs) > 1
    }
    readers = Counter(weights.values())
    return frozenset(number for number, weight in weights.items() if readers[weight] >= _UNROLLED)


def blocked_nodes(training: TrainingGraph) -> frozenset[int]:
    """The nodes whose outputs oneDNN keeps in a blocked layout (on a CPU)."""
    blocked: set[int] = set()
    for number, node in enumerate(training.nodes):
        if node.is_variable or len(node.outputs[0].shape) not in (4, 5):
            continue
        layout = spec(node.op[len(_BACKWARD) :] if node.op.startswith(_BACKWARD) else node.op).layout
        if layout.source or (layout.hands_on and any(entry.node in blocked for entry in node.inputs)):
            blocked.add(number)
    return frozenset(blocked)


def is_blocked(training: TrainingGraph, entry: Entry, blocked: AbstractSet[int]) -> bool:
    """Whether oneDNN keeps this entry in a blocked layout, where ``blocked`` is what `blocked_nodes` returns."""
    if entry.node not in blocked:
        return False
    tensor = training.type_of(entry)
    return len(tensor.shape) in (4, 5) and tensor.dtype == "float32" and entry.index < _maps(training, entry.node)


def _maps(training: TrainingGraph, number: int) -> int:
    node = training.nodes[number]
    return len(node.outputs) if spec(node.op).layout.blocks_all else 1


def is_free(training: TrainingGraph, node: TrainingNode) -> bool:
    """Whether nothing runs for this node: a variable, a view of its input, an addition that its producer makes."""
    if spec(node.op).is_free:
        return True
    for source, _, same in node.inplace:
        if same and len(node.outputs) == 1 and not node.external:
            return training.nodes[node.inputs[source].node].op != VARIABLE
    return False
