"""A layer norm by itself: MXNet's own takes several times as long on CPUs."""

from __future__ import annotations

from echo.ir.graph import Entry, fused_node
from echo.ir.op_spec import is_true
from echo.passes.patterns.graph_view import Fusion, Pattern, View, local


def match_layer_norm(view: View, number: int) -> Fusion | str | None:
    """The layer norm over the last axis that this node is: a fusion, why there is none, or None."""
    node = view.graph.nodes[number]
    if node.op != "LayerNorm":
        return None
    if node.attrs.get("axis", "-1") != "-1":
        return f"a layer norm over axis {node.attrs['axis']}: expected the last one, -1"
    if is_true(node.attrs, "output_mean_var") or view.read_outside(frozenset({number}), (Entry(number),)):
        return "a layer norm whose mean and variance are read"
    attrs = {"eps": node.attrs.get("eps", "1e-05")}
    return Fusion(
        pattern=LAYER_NORM.name,
        anchor=number,
        nodes=(fused_node(LAYER_NORM.name, node.name, node.inputs, attrs),),
        outputs={Entry(number): local(0)},
        replaced=frozenset({number}),
        shapes={node.inputs[0]: "...H", node.inputs[1]: "H", node.inputs[2]: "H"},
        label="a layer norm",
        min_bytes=(node.inputs[0], 1 << 16),
    )


LAYER_NORM = Pattern("layer_norm", frozenset({"LayerNorm"}), match_layer_norm)
