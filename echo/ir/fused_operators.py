"""The fused kernels as operators of MXNet's graphs: what planning has to know of them."""

from __future__ import annotations

from typing import Mapping, Sequence

from echo.ir.attributes import GRADIENT_ATTRIBUTE
from echo.ir.gradient_rule import GradientRule, own_inputs
from echo.ir.graph import Entry, Node
from echo.ir.op_spec import GradientReads
from echo.ir.ops import ops_with, spec

PREFIX = "_echo_"
# Which arrays the gradient of each kernel reads, of all that MXNet hands it. The kernels' ``table.cc`` says the same.
READS: Mapping[str, GradientReads] = {
    op[len(PREFIX) :]: reads
    for op in sorted(ops_with(lambda spec: True))
    if (reads := spec(op).gradient_reads) is not None
}


def fused_node(kernel: str, name: str, inputs: Sequence[Entry | None], attrs: Mapping[str, str] = {}) -> Node:
    """The operator of a kernel. Inputs that are None are optional ones that are not there.

    Its gradient holds on to no more than it reads: in the place of each other input stands the first that it reads.
    """
    gradients, needed, outputs = READS[kernel]
    needed = "".join(bit for bit, entry in zip(needed, inputs) if entry is not None)
    bits = gradients + needed + outputs
    op, first = PREFIX + kernel, bits.find("1")
    kernel_attrs = {"present": "".join("0" if entry is None else "1" for entry in inputs)}
    if first >= 0:
        read = own_inputs(*(position if bit == "1" else first for position, bit in enumerate(bits)))
        kernel_attrs[GRADIENT_ATTRIBUTE] = GradientRule(f"_backward_{op}", f"_backward_{op}", read).text
    return Node(op, name, tuple(entry for entry in inputs if entry is not None), attrs={**attrs, **kernel_attrs})


def num_outputs(node: Node) -> int:
    """Returns the number of outputs of a node that a fusion puts into a graph."""
    outputs = spec(node.op).outputs
    return int(node.attrs[outputs]) if isinstance(outputs, str) else outputs
