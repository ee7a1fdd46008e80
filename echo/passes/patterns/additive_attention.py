"""Additive attention: the scores of an MLP, and the sum of values with the weights that they give."""

from __future__ import annotations

from typing import NamedTuple

from echo.ir.graph import Entry, Node, fused_node
from echo.ir.op_spec import is_true
from echo.passes.patterns.graph_view import MUL, SUM, Fusion, Pattern, View, adds_otherwise, local, pairs

# The scores of MLP attention (Bahdanau et al., 2015): Sockeye's, or written by hand; with layer norm or without.

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
    return _fusion(view, number, _Scores(product, *operands, view.node(mixed) if norm else None, inner))


def _fusion(view: View, number: int, scores: _Scores) -> Fusion:
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
