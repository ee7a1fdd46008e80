"""The fused kernels as operators of MXNet's graphs: what planning has to know of them."""

from __future__ import annotations

from typing import Mapping, Sequence

from echo.ir.attributes import GRADIENT_ATTRIBUTE
from echo.ir.graph import Entry, Node

PREFIX = "_echo_"
# What the gradient reads: of the gradients of the outputs, the inputs, the outputs. The kernels have the same table
# (``table.cc``); MXNet hands a gradient all of them.
READS = {
    "lstm_cell": ("11", "11", "00"), "lstm_norm_cell": ("11", "1111", "00"),
    "gru_cell": ("1", "111", "0"), "mlp_score": ("1", "11111", "0"),
    "attention": ("10", "11111", "11"), "layer_norm": ("1", "110", "0"), "bias_act": ("1", "00", "1"),
    "sequence_reverse": ("1", "01", "0"), "relu": ("10", "0", "01"), "lstm_layer": ("1110", "1111111", "1001"),
    "softmax_output": ("0", "1101", "1"), "weighted_sum": ("1", "11", "0"),
    "pack_mask": ("00", "0", "00"), "apply_mask": ("1", "011", "0"),
}  # fmt: skip


def fused_node(kernel: str, name: str, inputs: Sequence[Entry | None], attrs: Mapping[str, str] = {}) -> Node:
    """The operator of a kernel. Inputs that are None are optional ones that are not there.

    Its gradient holds on to no more than it reads: in the place of each other input stands the first that it reads.
    """
    gradients, needed, outputs = READS[kernel]
    needed = "".join(bit for bit, entry in zip(needed, inputs) if entry is not None)
    bits = gradients + needed + outputs
    op, first = PREFIX + kernel, bits.find("1")
    own = {"present": "".join("0" if entry is None else "1" for entry in inputs)}
    if first >= 0:
        positions = ",".join(str(position if bit == "1" else first) for position, bit in enumerate(bits))
        own[GRADIENT_ATTRIBUTE] = f"_backward_{op}>_backward_{op}:{positions}"
    return Node(op, name, tuple(entry for entry in inputs if entry is not None), attrs={**attrs, **own})


def num_outputs(node: Node) -> int:
    """How many outputs a node that a fusion puts into a graph has."""
    if node.op == "SliceChannel":
        return int(node.attrs["num_outputs"])
    if node.op == "Dropout":
        return 2
    return len(READS[node.op[len(PREFIX) :]][0]) if node.op.startswith(PREFIX) else 1
