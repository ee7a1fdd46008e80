"""Dropout with its mask as bits: MXNet keeps a number for each element until backward."""

from __future__ import annotations

from echo.ir.fused_operators import fused_node
from echo.ir.graph import Entry, Node
from echo.ir.recomputable import why_not_dropout
from echo.passes.patterns.graph_view import Fusion, View, local

NAME = "dropout"


def match(view: View, number: int) -> Fusion | str | None:
    """The Dropout that this node is: a fusion, why there is none, or None.

    MXNet's own Dropout still draws the same numbers in the same order, in training or not, but its input is ones: so
    its output is the mask. The product of mask and input is the output of Dropout, to the last bit (on CUDA with
    cudnn_off: cuDNN may round float16 in another way, and drops infinities).
    """
    node = view.graph.nodes[number]
    if node.op != "Dropout":
        return None
    reason = why_not_dropout(node.attrs)
    if reason:
        return reason
    if float(node.attrs.get("p", "0.5")) >= 1:
        return "a Dropout that keeps nothing"
    if view.read_outside(frozenset({number}), (Entry(number),)):
        return "a Dropout whose mask is read"
    x, name = node.inputs[0], node.name
    return Fusion(
        pattern=NAME,
        anchor=number,
        nodes=(
            Node("ones_like", f"{name}_echo_ones", (x,)),
            node._with(name=f"{name}_echo_mask", inputs=(local(0),)),
            fused_node("pack_mask", f"{name}_echo_bits", (local(1),)),
            fused_node("apply_mask", name, (x, local(2, 0), local(2, 1))),
        ),
        outputs={Entry(number): local(3)},
        replaced=frozenset({number}),
        shapes={x: "*n"},
        shape_source=x,
        label="a mask of Dropout as bits",
        min_bytes=(x, 1 << 15),
    )
