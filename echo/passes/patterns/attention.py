"""Attention: products of queries and keys, softmax, products with values (Transformers); additive attention."""

from __future__ import annotations

from typing import NamedTuple

from echo.ir.graph import Entry, Node, fused_node
from echo.ir.op_spec import is_true
from echo.ir.training_node import why_not_dropout
from echo.passes.patterns import attention_scores as scores_of
from echo.passes.patterns.attention_products import LEADING, PRODUCTS, SEVERAL, Built, Operands, Result, result
from echo.passes.patterns.graph_view import MUL, SUM, Fusion, Pattern, View, adds_otherwise, local, pairs
from echo.passes.patterns.single_operators import LEAST_DROPPED, drawing

_ALL = "16777216"  # more keys than there are; still a whole number in float32


class _AttentionWeights(NamedTuple):
    """Weights [N,Tq,Tk]: their softmax, Dropout and factor, and the ``shaped`` entries on the way to the product."""

    softmax: Entry
    dropout: int | None
    factor: Entry | None
    nodes: frozenset[int]
    shaped: tuple[Entry, ...]


def match_attention(view: View, number: int) -> Fusion | str | None:
    """The attention whose result this product is: a fusion, why there is none, or None where there is no attention.

    softmax(scale q k' + mask) v, perhaps with a number of keys for each query, and Dropout of the weights. No feature
    map of [N,Tq,Tk] numbers is ever in memory (as in FlashAttention, Dao et al., 2022).
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
    staying = fusion.shapes.keys() - set(map(Entry, replaced))  # from these MXNet infers the shapes of the others
    return next(filter(None, map(view.shape_known_too_late, staying)), fusion)


def _weights(view: View, entry: Entry) -> _AttentionWeights | str | None:
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
            return _AttentionWeights(entry, dropout, factor, frozenset(nodes), tuple(shaped))
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


def _scores(view: View, weights: _AttentionWeights) -> scores_of.Scores | str | None:
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
    view: View,
    number: int,
    weighted: Result,
    weights: _AttentionWeights,
    scores: scores_of.Scores,
    replaced: frozenset[int],
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


# The scores of MLP attention (Bahdanau et al., 2015): Sockeye's, or written by hand; with layer norm or without.

# Additive attention: MLP scores, and weighted sums.

_BROADCAST_ADD = frozenset({"broadcast_add", "_npi_add"})
_EXPANDED = frozenset({"expand_dims", "Reshape"})
_LAST = ("2", "-1", "(2,)", "(-1,)", "[2]", "[-1]")


class _Product(NamedTuple):
    """The product of an active layer with one vector; ``nodes`` compute it, and give it the shape ``out``."""

    active: Entry
    vector: Entry
    out: str
    nodes: frozenset[int]


class _Scores(NamedTuple):
    """The parts of the scores: ``norm`` is the layer norm, if there is one; ``nodes`` compute the scores."""

    product: _Product
    keys: Entry
    query: Entry
    norm: Node | None
    nodes: frozenset[int]


def match_mlp_score(view: View, number: int) -> Fusion | str | None:
    """The scores that this node computes: a fusion, why there is none, or None where there are no such scores.

    v . tanh(norm(keys + query)): keys [B,T,H], one query [B,1,H], norm the layer norm or nothing. The fused operator
    stashes nothing but its inputs (Echo, ISCA'20, section 2: these feature maps are most of the stash of NMT).
    """
    product = _product(view, number)
    if product is None:
        return None
    mixed = view.activated(product.active, "tanh")
    if mixed is None:
        return None
    norm = view.inputs(mixed, ("LayerNorm",))
    terms = view.inputs(norm[0] if norm else mixed, _BROADCAST_ADD)
    if terms is None:
        return None
    operands = next(((k, q) for k, q in pairs(terms) if view.node(q).op in _EXPANDED), None)
    if operands is None:
        return None
    inner = product.nodes | {product.active.node, mixed.node} | ({norm[0].node} if norm else set())
    if norm and view.node(mixed).attrs.get("axis", "-1") not in ("-1", "2"):
        return "attention scores with a layer norm along another axis than the last"
    outside = view.read_outside(inner, (Entry(number),))
    if outside:
        return f"{outside!r}, inside of the attention scores, is read from outside"
    return _score_fusion(view, number, _Scores(product, *operands, view.node(mixed) if norm else None, inner))


def _score_fusion(view: View, number: int, scores: _Scores) -> Fusion:
    inputs: list[Entry | None] = [scores.keys, scores.query, scores.product.vector]
    shapes = {scores.keys: "B,T,H", scores.query: "B,1,H", scores.product.vector: "1...,H"}
    attrs = {"out": scores.product.out}
    if scores.norm is not None:
        inputs += scores.norm.inputs[1:]
        shapes.update(dict.fromkeys(scores.norm.inputs[1:], "H"))
        attrs["eps"] = scores.norm.attrs.get("eps", "1e-05")
    else:
        inputs += [None, None]
    name = view.graph.nodes[number].name
    return Fusion(
        pattern=MLP_SCORE.name,
        anchor=number,
        nodes=(fused_node(MLP_SCORE.name, name, inputs, attrs),),
        outputs={Entry(number): local(0)},
        replaced=scores.nodes,
        shapes=shapes,
        label="the scores of MLP attention" + (" with layer norm" if scores.norm is not None else ""),
    )


def _product(view: View, number: int) -> _Product | None:
    node = view.graph.nodes[number]
    if node.op == "FullyConnected":
        return _by_layer(view, number, node)
    if (node.op in SUM and node.attrs.get("axis") in _LAST
            and not is_true(node.attrs, "exclude") and not adds_otherwise(node.attrs)):  # fmt: skip
        operands = view.inputs(node.inputs[0], MUL)
        out = "BT1" if is_true(node.attrs, "keepdims") else "BT"
        for active, vector in pairs(operands) if operands else ():
            if view.activated(active, "tanh"):
                return _Product(active, vector, out, frozenset({number, node.inputs[0].node}))
    return None


def _by_layer(view: View, number: int, node: Node) -> _Product | None:
    if node.attrs.get("num_hidden") != "1" or not is_true(node.attrs, "no_bias"):
        return None
    active, vector = node.inputs[:2]
    if not is_true(node.attrs, "flatten", "True"):
        return _Product(active, vector, "BT1", frozenset({number}))
    rows = view.inputs(active, ("Reshape",))
    if rows and view.activated(rows[0], "tanh"):
        return _Product(rows[0], vector, "rows", frozenset({number, active.node}))
    return None


MLP_SCORE = Pattern("mlp_score", frozenset({"FullyConnected", *SUM}), match_mlp_score)


# The context of attention: values weighted and summed over time.

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
