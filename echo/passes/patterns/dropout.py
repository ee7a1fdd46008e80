"""Dropout with its mask as bits: MXNet keeps a number for each element until backward."""

from __future__ import annotations

import numpy as np

from echo.ir.graph import Entry, Node, fused_node
from echo.ir.recompute_rules import why_not_dropout
from echo.passes.patterns.graph_view import Fusion, Pattern, View, local

LEAST_DROPPED = 1e-3  # what float16 can tell from nothing, where the first element says whether anything is dropped


def match_dropout(view: View, number: int) -> Fusion | str | None:
    """The Dropout that this node is: a fusion, why there is none, or None.

    The product of mask and input is the output of Dropout, to the last bit (on CUDA with cudnn_off: cuDNN may round
    float16 in another way, and drops infinities).
    """
    node = view.graph.nodes[number]
    if node.op != "Dropout":
        return None
    reason = why_not_dropout(node.attrs)
    if reason:
        return reason
    p = float(node.attrs.get("p", "0.5"))
    if p >= 1:
        return "a Dropout that keeps nothing"
    if view.read_outside(frozenset({number}), (Entry(number),)):
        return "a Dropout whose mask is read"
    x = node.inputs[0]
    nodes = _drawn(node, x) if view.setting.draws and p >= LEAST_DROPPED else _packed(node, x)
    last = len(nodes)
    return Fusion(
        pattern=DROPOUT.name,
        anchor=number,
        nodes=(*nodes, fused_node("apply_mask", node.name, (x, local(last - 1, 0), local(last - 1, 1)))),
        outputs={Entry(number): local(last)},
        replaced=frozenset({number}),
        shapes={x: "*n"},
        shape_source=x,
        label="a mask of Dropout as bits",
        min_bytes=(x, 1 << 15),
    )


def drawing(node: Node) -> dict[str, str]:
    """The parameters of ``draw_mask`` that draw what this Dropout would: the part that is kept is float32 in MXNet."""
    keep = float(np.float32(1) - np.float32(node.attrs.get("p", "0.5")))
    return {"keep": repr(keep), "seed": "0", "offset": "0"}


def _packed(node: Node, x: Entry) -> tuple[Node, ...]:
    """MXNet's own Dropout draws the same numbers in the same order, but its input is ones: its output is the mask."""
    return (
        Node("ones_like", f"{node.name}_echo_ones", (x,)),
        node._with(name=f"{node.name}_echo_mask", inputs=(local(0),)),
        fused_node("pack_mask", f"{node.name}_echo_bits", (local(1),)),
    )


def _drawn(node: Node, x: Entry) -> tuple[Node, ...]:
    """MXNet's own Dropout draws the first element alone, which tells whether anything is trained; the kernel the rest.

    It does so right behind it, in the order in which MXNet's Dropout would, and in a tenth of the time.
    """
    prefix, one = f"{node.name}_echo_", local(2)
    return (
        Node("ones_like", prefix + "ones", (x,)),
        Node("Reshape", prefix + "flat", (local(0),), attrs={"shape": "(-1,)"}),
        Node("slice_axis", prefix + "one", (local(1),), attrs={"axis": "0", "begin": "0", "end": "1"}),
        node._with(name=prefix + "first", inputs=(one,)),
        fused_node("draw_mask", prefix + "bits", (local(3), local(1), one, one), drawing(node)),
    )


DROPOUT = Pattern("dropout", frozenset({"Dropout"}), match_dropout, is_mask=True)
