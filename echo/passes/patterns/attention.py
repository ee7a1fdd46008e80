"""Dot attention: the product of queries and keys, softmax, and the product with values, as Transformers have it."""

from __future__ import annotations

from typing import Mapping, NamedTuple

from echo.ir.attributes import is_true
from echo.ir.fused_operators import fused_node
from echo.ir.graph import Entry, Node
from echo.passes.patterns.graph_view import Fusion, View, local, pairs

NAME = "attention"
_BIASED = frozenset({"broadcast_add", "elemwise_add", "_npi_add"})
_ALL = "16777216"  # more keys than there are; still a whole number in float32
_LAST = ("-1", "2")
_LEAST_MASK = -1e7  # softmax makes zeros of masked scores of this value or less


class _Scores(NamedTuple):
    """The input of softmax: the product [N,Tq,Tk] of queries and keys, masked and biased."""

    q: Entry
    k: Entry
    lengths: Entry | None
    bias: Entry | None
    nodes: frozenset[int]


def match(view: View, number: int) -> Fusion | str | None:
    """The attention whose result this product is: a fusion, why there is none, or None where there is no attention.

    softmax(q k' + bias) v, perhaps with a number of keys for each batch element. No map of [N,Tq,Tk] is ever in memory
    (as in FlashAttention, Dao et al., 2022).
    """
    node = view.graph.nodes[number]
    if node.op != "batch_dot" or is_true(node.attrs, "transpose_a") or is_true(node.attrs, "transpose_b"):
        return None
    weights, values = node.inputs
    if view.node(weights).op == "Dropout":
        dropped = view.node(weights).inputs[0]
        return "attention with dropout of its weights" if view.node(dropped).op == "softmax" else None
    softmax = view.node(weights)
    if softmax.op != "softmax" or softmax.attrs.get("axis", "-1") not in _LAST:
        return None
    if is_true(softmax.attrs, "use_length") or softmax.attrs.get("temperature", "None") not in ("None", "1.0", "1"):
        return "attention with a temperature, or with lengths for its softmax"
    scores = _scores(view, softmax.inputs[0])
    if scores is None or isinstance(scores, str):
        return scores
    replaced = scores.nodes | {number, weights.node}
    outside = view.read_outside(replaced, (Entry(number),))
    if outside:
        return f"{outside!r}, inside of the attention, is read from outside"
    return _fusion(view, number, scores, values, replaced)


def _fusion(view: View, number: int, scores: _Scores, values: Entry, replaced: frozenset[int]) -> Fusion:
    name = view.graph.nodes[number].name
    nodes: list[Node] = []
    q, lengths = scores.q, scores.lengths
    if lengths is not None:
        nodes = _of_no_length(name, q, lengths)
        q, lengths = local(2), local(5)
    nodes.append(fused_node(NAME, name, (q, scores.k, values, lengths, scores.bias), {"scale": "1"}))
    shapes = {scores.q: "N,T,D", scores.k: "N,S,D", values: "N,S,V"}
    if scores.lengths is not None:
        shapes[scores.lengths] = "N"
    if scores.bias is not None:
        shapes[scores.bias] = "1,T,S"
    return Fusion(
        pattern=NAME,
        anchor=number,
        nodes=tuple(nodes),
        outputs={Entry(number): local(len(nodes) - 1)},
        replaced=replaced,
        shapes=shapes,
        label="dot attention",
    )


def _of_no_length(name: str, q: Entry, lengths: Entry) -> list[Node]:
    """Keys of length 0, which MXNet weighs alike: the query becomes 0 (local 2), and all keys count (local 5)."""
    return [
        Node("_greater_scalar", name + "_some", (lengths,), attrs={"scalar": "0"}),
        Node("Reshape", name + "_where", (local(0),), attrs={"shape": "(-1,1,1)"}),
        Node("broadcast_mul", name + "_query", (q, local(1))),
        Node("_equal_scalar", name + "_none", (lengths,), attrs={"scalar": "0"}),
        Node("_mul_scalar", name + "_all", (local(3),), attrs={"scalar": _ALL}),
        Node("elemwise_add", name + "_lengths", (lengths, local(4))),
    ]


def _scores(view: View, entry: Entry) -> _Scores | str | None:
    terms = view.inputs(entry, _BIASED)
    if terms is None:
        return _masked(view, entry, None, frozenset())
    near_miss: _Scores | str | None = None
    for inner, bias in pairs(terms):
        scores = _masked(view, inner, bias, frozenset({entry.node}))
        if isinstance(scores, _Scores):
            return scores if view.is_constant(bias) else "attention with a bias that is trained"
        near_miss = near_miss or scores
    return near_miss


def _masked(view: View, entry: Entry, bias: Entry | None, nodes: frozenset[int]) -> _Scores | str | None:
    """The scores below a mask of the keys beyond each length; the mask is applied between two transposes."""
    back = view.inputs(entry, ("transpose",))
    if back is None:
        return _product(view, entry, None, bias, nodes)
    mask = view.node(back[0])
    if mask.op != "SequenceMask" or not is_true(mask.attrs, "use_sequence_length"):
        return None
    if bias is not None:
        return "attention with a mask and a bias: MXNet adds them up, and loses the bias where all keys are ruled out"
    forth = view.inputs(mask.inputs[0], ("transpose",))
    axes = [_axes(view.node(entry).attrs), _axes(view.node(mask.inputs[0]).attrs)]
    if forth is None or axes != [(1, 2, 0), (2, 0, 1)] or mask.attrs.get("axis", "0") != "0":
        return "attention with a mask along another axis than that of the keys"
    if float(mask.attrs.get("value", "0")) > _LEAST_MASK:
        return "attention whose mask does not rule keys out"
    inner = nodes | {entry.node, back[0].node, mask.inputs[0].node}
    return _product(view, forth[0], mask.inputs[1], bias, inner)


def _product(
    view: View, entry: Entry, lengths: Entry | None, bias: Entry | None, nodes: frozenset[int]
) -> _Scores | None:
    node = view.node(entry)
    if node.op != "batch_dot" or is_true(node.attrs, "transpose_a") or not is_true(node.attrs, "transpose_b"):
        return None
    q, k = node.inputs
    return _Scores(q, k, lengths, bias, nodes | {entry.node})


def _axes(attrs: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in attrs.get("axes", "").strip("()[] ").split(",") if axis.strip())
