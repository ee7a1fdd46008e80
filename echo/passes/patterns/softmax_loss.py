"""Losses over classes: a layer with its softmax output, and a log softmax with the loss that reads it."""

from __future__ import annotations

from typing import NamedTuple

from echo.ir.graph import Entry, Node, fused_node
from echo.ir.op_spec import is_true
from echo.passes.patterns.graph_view import Fusion, Pattern, View, local

# A fully connected layer and the SoftmaxOutput after it, as at the end of language models.

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


# The logarithm of a softmax that a loss reads at its label, as Gluon's SoftmaxCrossEntropyLoss does.

LINEAR = "linear_cross_entropy"
_LAST = ("-1", "(-1,)", "[-1]", "(-1)")


class _Read(NamedTuple):
    """One entry that a loss reads: the fused operator's output in its place, and whether the class axis is kept."""

    entry: Entry
    output: int
    keeps_axis: bool


def match_cross_entropy(view: View, number: int) -> Fusion | str | None:
    """Returns the fusion of a log softmax with the loss that reads it, why there is none, or None for other nodes.

    The logarithms are read by one ``pick`` at the label, and by sums over all classes (label smoothing, Szegedy et al.
    2016). They are never in memory as a whole, and after a fully connected layer neither is the gradient of the
    scores: only the probabilities are. (Cut Cross-Entropy, Wijmans et al. 2025, keeps none of them, and computes the
    scores twice.)
    """
    node = view.graph.nodes[number]
    if node.op != "log_softmax":
        return None
    logarithms = Entry(number)
    readers = view.readers.get(logarithms, ())
    picks = [reader for reader in readers if reader >= 0 and view.graph.nodes[reader].op == "pick"]
    if not picks:
        return None
    if node.attrs.get("axis", "-1") != "-1":
        return f"a cross entropy over axis {node.attrs['axis']}: expected the last one, -1"
    if any(node.attrs.get(option, "None") not in ("None", "1.0", "1") for option in ("temperature", "dtype")):
        return "a cross entropy with a temperature, or of another type than its scores"
    if len(picks) > 1:
        return "logarithms that are read at two labels"
    reads = [_read(view, reader, logarithms) for reader in sorted(set(readers))]
    if not all(reads):
        return "the logarithms are read by others than a pick at the label and sums over the classes"
    replaced = frozenset({number, *readers})
    loss_reads = [read for read in reads if read is not None]
    if view.read_outside(replaced, [read.entry for read in loss_reads]):
        return "the logarithms are read from outside"
    return _of_cross_entropy(view, number, view.graph.nodes[picks[0]].inputs[1], loss_reads, replaced)


def _read(view: View, number: int, logarithms: Entry) -> _Read | None:
    if number < 0:
        return None
    node = view.graph.nodes[number]
    first = node.inputs[0]
    if Entry(first.node, first.index) != logarithms or node.attrs.get("axis", "-1") not in _LAST:
        return None
    keeps_axis = is_true(node.attrs, "keepdims")
    if node.op == "pick" and node.attrs.get("mode", "clip") == "clip":
        return _Read(Entry(number), 0, keeps_axis)
    if node.op == "sum" and "axis" in node.attrs and not is_true(node.attrs, "exclude"):
        return _Read(Entry(number), 1, keeps_axis)
    return None


def _of_cross_entropy(view: View, number: int, label: Entry, reads: list[_Read], replaced: frozenset[int]) -> Fusion:
    name = view.graph.nodes[number].name
    scores = view.graph.nodes[number].inputs[0]
    operands: tuple[Entry | None, ...] = (scores,)
    shapes = {scores: "...R,V"}
    layer = view.node(scores)
    inside = replaced | {scores.node}
    is_linear = layer.op == "FullyConnected" and not view.read_outside(inside, [read.entry for read in reads])
    if is_linear:
        data, weight = layer.inputs[:2]
        bias = None if is_true(layer.attrs, "no_bias") else layer.inputs[2]
        operands, replaced = (data, weight, bias), inside
        shapes.update({data: "R,I" if is_true(layer.attrs, "flatten", "True") else "...R,I", weight: "V,I"})
        if bias is not None:
            shapes[bias] = "V"
    # of any type; as float32 it is exact up to 2^24 classes
    nodes = [Node("Cast", f"{name}_label", (label,), attrs={"dtype": "float32"})]
    nodes.append(
        fused_node(LINEAR if is_linear else CROSS_ENTROPY.name, name, (*operands, local(0)), {"out": "leading"})
    )
    outputs = {}
    for read in reads:
        outputs[read.entry] = local(1, read.output)
        if read.keeps_axis:
            outputs[read.entry] = local(len(nodes))
            nodes.append(
                Node("expand_dims", f"{view.graph.nodes[read.entry.node].name}_axis", (local(1, read.output),),
                     attrs={"axis": "-1"})
            )  # fmt: skip
    return Fusion(
        pattern=CROSS_ENTROPY.name,
        anchor=number,
        nodes=tuple(nodes),
        outputs=outputs,
        replaced=replaced,
        shapes=shapes,
        label="a cross entropy with its layer" if is_linear else "a cross entropy",
        min_bytes=(scores, 1 << 16),
    )


CROSS_ENTROPY = Pattern("cross_entropy", frozenset({"log_softmax"}), match_cross_entropy)
