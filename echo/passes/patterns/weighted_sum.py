"""The context of attention: values weighted and summed over time."""

from __future__ import annotations

from echo.ir.graph import Entry, fused_node
from echo.ir.op_spec import is_true
from echo.passes.patterns.graph_view import MUL, SUM, Fusion, Pattern, View, adds_otherwise, local, pairs

_MIDDLE = ("1", "(1,)", "[1]")
# Operators that compute weights, the likeliest first: without shapes, either operand may be the weights.
_WEIGHTS = ("softmax", "_npx_softmax", "masked_softmax", "Dropout", "expand_dims", "Reshape", "_npx_reshape")


def match_weighted_sum(view: View, number: int) -> Fusion | str | None:
    """The sum over axis 1 of values [B,T,H] times weights [B,T,1]: a fusion, why there is none, or None."""
    node = view.graph.nodes[number]
    if node.op not in SUM or node.attrs.get("axis") not in _MIDDLE or is_true(node.attrs, "exclude"):
        return None
    operands = view.inputs(node.inputs[0], MUL)
    sources = [(view.node(w).op, v, w) for v, w in pairs(operands)] if operands else []
    ranked = [(_WEIGHTS.index(op), v, w) for op, v, w in sources if op in _WEIGHTS]
    if not ranked:
        return None
    if adds_otherwise(node.attrs):
        return "a sum in another type, or from another number than 0"
    _, values, weights = min(ranked)
    replaced = frozenset({number, node.inputs[0].node})
    if view.read_outside(replaced, (Entry(number),)):
        return f"the weighted values {view.node(node.inputs[0]).name!r} are read by others than the sum"
    attrs = {"out": "B1H" if is_true(node.attrs, "keepdims") else "BH"}
    return Fusion(
        pattern=WEIGHTED_SUM.name,
        anchor=number,
        nodes=(fused_node(WEIGHTED_SUM.name, node.name, (weights, values), attrs),),
        outputs={Entry(number): local(0)},
        replaced=replaced,
        shapes={values: "B,T,H", weights: "B,T,1"},
        label="the context of attention",
    )


WEIGHTED_SUM = Pattern("weighted_sum", SUM, match_weighted_sum, reads=MUL)
