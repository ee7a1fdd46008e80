"""Dot attention: the product of queries and keys, softmax, and the product with values, as Transformers have it."""

from __future__ import annotations

from typing import NamedTuple

from echo.ir.graph import Entry, Node, fused_node
from echo.ir.op_spec import is_true
from echo.ir.training_node import why_not_dropout
from echo.passes.patterns import attention_scores as scores_of
from echo.passes.patterns.attention_products import LEADING, PRODUCTS, SEVERAL, Built, Operands, Result, result
from echo.passes.patterns.graph_view import MUL, Fusion, Pattern, View, pairs
from echo.passes.patterns.single_operators import LEAST_DROPPED, drawing

_ALL = "16777216"  # more keys than there are; still a whole number in float32


class _Weights(NamedTuple):
    """Weights [N,Tq,Tk]: their softmax, Dropout and factor, and the ``shaped`` entries on the way to the product."""

    softmax: Entry
    dropout: int | None
    factor: Entry | None
    nodes: frozenset[int]
    shaped: tuple[Entry, ...]


def match_attention(view: View, number: int) -> Fusion | str | None:
    """The attention whose result this product is: a fusion, why there is none, or None where there is no attention.

    softmax(scale q k' + mask) v, perhaps with a number of keys for each query, and Dropout of the weights. No map of
    [N,Tq,Tk] numbers is ever in memory (as in FlashAttention, Dao et al., 2022).
    """
    weighted = result(view, number)
    if weighted is None:
        return None
    weights = _weights(view, weighted.weights)
    if weights is None or isinstance(weights, str):
        return weights
    scores = _scores(view, weights)
    if scores is None or isinstance(scores, str):
        return scores
    if scores.form != weighted.form:
        return f"attention with products of two kinds: {scores.form} and {weighted.form}"
    if weighted.heads and (weighted.heads != scores.product.heads or weighted.values != scores.product.inputs[-1]):
        return "attention whose values lie in another array than its keys, or in other heads"
    replaced = scores.nodes | weights.nodes | {number}
    outside = view.read_outside(replaced, (Entry(number),))
    if outside:
        return f"{outside!r}, inside of the attention, is read from outside"
    fusion = _fusion(view, number, weighted, weights, scores, replaced)
    return next(filter(None, map(view.shape_known_too_late, fusion.shapes.keys() - _first_outputs(replaced))), fusion)


def _first_outputs(replaced: frozenset[int]) -> set[Entry]:
    """Returns the first outputs of the replaced nodes: MXNet infers their shapes from the entries that stay."""
    return {Entry(number) for number in replaced}


def _weights(view: View, entry: Entry) -> _Weights | str | None:
    nodes: set[int] = set()
    shaped: list[Entry] = []
    dropout: int | None = None
    factor: Entry | None = None
    while True:
        node = view.node(entry)
        if entry.index != 0:
            return None
        nodes.add(entry.node)
        if node.op == "softmax":
            return _Weights(entry, dropout, factor, frozenset(nodes), tuple(shaped))
        if node.op in ("Reshape", "reshape"):
            shaped.append(entry)
            entry = node.inputs[0]
        elif node.op == "_copy":  # Gluon's Dropout(0)
            entry = node.inputs[0]
        elif node.op == "Dropout" and dropout is None and factor is None:
            p, reason = float(node.attrs.get("p", "0.5")), why_not_dropout(node.attrs)
            if p != 0 and (reason or not LEAST_DROPPED <= p < 1):
                return f"attention with dropout of its weights: {reason or f'p is {p}'}"
            dropout = entry.node if p != 0 else None
            entry = node.inputs[0]
        elif node.op in MUL and factor is None:
            terms = [(one, other) for one, other in pairs(node.inputs) if view.node(one).op == "softmax"]
            if not terms:
                return None
            entry, factor = terms[0]
        else:
            return None


def _scores(view: View, weights: _Weights) -> scores_of.Scores | str | None:
    softmax = view.node(weights.softmax)
    lengths = softmax.inputs[1] if is_true(softmax.attrs, "use_length") else None
    dtype = softmax.attrs.get("dtype", "None")
    if dtype not in ("None", ""):
        return "attention whose softmax changes the type"
    scores = scores_of.match(view, softmax.inputs[0], lengths)
    if not isinstance(scores, scores_of.Scores):
        return scores
    axis, several = softmax.attrs.get("axis", "-1"), weights.shaped or scores.form == SEVERAL
    if axis not in ("-1", "3" if several else "2"):
        return None
    if axis != "-1":  # the last one only of scores with no more axes than these
        scores = scores._replace(shapes={**scores.shapes, weights.softmax: "i,j,T,S" if several else "i,T,S"})
    tempered = _tempered(scores, softmax.attrs.get("temperature", "None"))
    if isinstance(tempered, str) or weights.factor is None:
        return tempered
    return _multiplied(view, tempered, weights.factor)


def _tempered(scores: scores_of.Scores, temperature: str) -> scores_of.Scores | str:
    """Scores that a softmax divides by its temperature."""
    if temperature == "None" or float(temperature) == 1:
        return scores
    if scores.masks or scores.lengths is not None:
        return "attention with a temperature, and a mask"
    if float(temperature) == 0:
        return "attention with a temperature of 0"
    return scores._replace(scale=scores.scale / float(temperature))


def _multiplied(view: View, scores: scores_of.Scores, factor: Entry) -> scores_of.Scores | str:
    """Scores whose weights are multiplied by the mask that they have got already."""
    mask = scores.masks[0] if len(scores.masks) == 1 else None
    if mask is None or mask.fill is None or mask.user != factor:
        return "attention whose weights are multiplied by something else than their mask"
    if not view.is_constant(mask.user):
        return "attention with a mask that is trained"
    return scores._replace(masks=(mask._replace(multiplies=True),))


def _fusion(
    view: View, number: int, weighted: Result, weights: _Weights, scores: scores_of.Scores, replaced: frozenset[int]
) -> Fusion:
    built = Built(view.graph.nodes[number].name)
    operands = Operands.of(view, built, weighted, scores.product)
    q = operands.q
    lengths = scores.lengths
    if lengths is not None and scores.row_lengths:
        lengths = built.add("Cast", "lengths", (lengths,), dtype="float32")
    elif lengths is not None:
        q, lengths = _of_no_length(built, q, lengths)
    mask = scores_of.built_mask(built, scores.masks)
    bits: tuple[Entry | None, Entry | None] = (None, None)
    if weights.dropout is not None:
        bits = _bits(view, built, view.graph.nodes[weights.dropout], operands)
    filled = scores.masks[0] if scores.masks else None
    attrs = {
        "scale": repr(scores.scale),
        "masking": "0" if filled is None or filled.fill is None else "2" if filled.multiplies else "1",
        "fill": repr(0.0 if filled is None or filled.fill is None else filled.fill),
        "root": "1" if scores.product.root else "0",
    }
    out = built.append(fused_node(ATTENTION.name, built.name, (q, operands.k, operands.v, lengths, mask, *bits), attrs))
    out = operands.finished(built, out)
    shapes = {**operands.shapes, **scores.shapes}
    shapes.update({entry: f"{LEADING}T,S" for entry in weights.shaped})
    return Fusion(
        pattern=ATTENTION.name,
        anchor=number,
        nodes=tuple(built.nodes),
        outputs={Entry(number): out},
        replaced=replaced,
        shapes=shapes,
        label="dot attention",
    )


def _of_no_length(built: Built, q: Entry, lengths: Entry) -> tuple[Entry, Entry]:
    """Keys of length 0, which MXNet weighs alike: the query becomes 0, and all keys count.

    MXNet cuts lengths to whole numbers.
    """
    lengths = built.add("trunc", "whole", (lengths,))
    some = built.add("_greater_scalar", "some", (lengths,), scalar="0")
    where = built.add("Reshape", "where", (some,), shape="(-1,1,1)")
    query = built.add("broadcast_mul", "query", (q, where))
    none = built.add("_equal_scalar", "none", (lengths,), scalar="0")
    return query, built.add("elemwise_add", "lengths", (lengths, built.add("_mul_scalar", "all", (none,), scalar=_ALL)))


def _bits(view: View, built: Built, dropout: Node, operands: Operands) -> tuple[Entry, Entry]:
    """The bits of the Dropout of the weights, and what they are multiplied by; MXNet's own Dropout draws numbers.

    Where kernels draw as it does, it draws the first element alone, which tells whether anything is trained, and they
    draw the rest, in the order in which it would. Else it draws a mask of all of them for a moment.
    """
    sizes = [built.add("_contrib_arange_like", f"of{axis}", (entry,), axis=str(axis_of))
             for axis, (entry, axis_of) in enumerate(((operands.q, 0), (operands.q, 1), (operands.k, 1)))]  # fmt: skip
    ones = built.add("ones_like", "ones", (sizes[0],))
    prefix = f"{dropout.name}_echo_"
    if view.setting.draws:
        one = built.add("slice_axis", "one", (ones,), axis="0", begin="0", end="1")
        first = built.append(dropout._with(name=prefix + "first", inputs=(one,)))
        bits = built.append(fused_node("draw_mask", prefix + "bits", (first, *sizes), drawing(dropout)))
    else:
        cube = built.add("Reshape", "items", (ones,), shape="(-1,1,1)")
        for size, shape in ((sizes[1], "(1,-1,1)"), (sizes[2], "(1,1,-1)")):
            more = built.add("Reshape", "axis", (built.add("ones_like", "more", (size,)),), shape=shape)
            cube = built.add("broadcast_mul", "cube", (cube, more))
        mask = built.append(dropout._with(name=prefix + "mask", inputs=(cube,)))
        bits = built.append(fused_node("pack_mask", prefix + "bits", (mask,)))
    return bits, Entry(bits.node, 1)


ATTENTION = Pattern("attention", PRODUCTS, match_attention)
