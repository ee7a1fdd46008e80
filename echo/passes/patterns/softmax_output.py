"""A fully connected layer and the SoftmaxOutput after it, as at the end of language models."""

from __future__ import annotations

from echo.ir.graph import Entry, Node, fused_node
from echo.ir.op_spec import is_true
from echo.passes.patterns.graph_view import Fusion, Pattern, View, local

_NORMALIZATIONS = {"null": "0", "batch": "1", "valid": "2"}


def match_softmax_output(view: View, number: int) -> Fusion | str | None:
    """The layer and the softmax output that this node is: a fusion, why there is none, or None.

    MXNet holds the gradient of all scores at once, as large as the probabilities; the fused operator, a tile at a time.
    """
    node = view.graph.nodes[number]
    if node.op not in ("SoftmaxOutput", "Softmax"):
        return None
    layer = view.node(node.inputs[0])
    if layer.op != "FullyConnected":
        return None
    for option in ("multi_output", "preserve_shape", "out_grad"):
        if is_true(node.attrs, option):
            return f"a softmax output with {option}"
    if not float(node.attrs.get("ignore_label", "-1")).is_integer():
        return "a softmax output whose ignored label is no whole number"
    replaced = frozenset({number, node.inputs[0].node})
    if view.read_outside(replaced, (Entry(number),)):
        return f"the scores {layer.name!r} are read by others than the softmax"
    return _of_softmax_output(number, node, layer, replaced)


def _of_softmax_output(number: int, node: Node, layer: Node, replaced: frozenset[int]) -> Fusion:
    data, weight = layer.inputs[:2]
    bias = None if is_true(layer.attrs, "no_bias") else layer.inputs[2]
    label = node.inputs[1]
    attrs = {
        "grad_scale": node.attrs.get("grad_scale", "1"),
        "use_ignore": "1" if is_true(node.attrs, "use_ignore") else "0",
        "ignore_label": node.attrs.get("ignore_label", "-1"),
        "normalization": _NORMALIZATIONS[node.attrs.get("normalization", "null")],
        "smooth_alpha": node.attrs.get("smooth_alpha", "0"),
    }
    shapes = {data: "N,I", weight: "V,I", label: "N", node.inputs[0]: "N,V"}
    if bias is not None:
        shapes[bias] = "V"
    return Fusion(
        pattern=SOFTMAX_OUTPUT.name,
        anchor=number,
        nodes=(fused_node(SOFTMAX_OUTPUT.name, node.name, (data, weight, bias, label), attrs),),
        outputs={Entry(number): local(0)},
        replaced=replaced,
        shapes=shapes,
        label="a softmax output with its layer",
        min_bytes=(node.inputs[0], 1 << 20),
    )


SOFTMAX_OUTPUT = Pattern(
    "softmax_output", frozenset({"SoftmaxOutput", "Softmax"}), match_softmax_output, reads=frozenset({"FullyConnected"})
)
