"""The non-linear block of a GRU cell: of mx.rnn, of Gluon, or written by hand."""

from __future__ import annotations

from typing import NamedTuple

from echo.ir.fused_operators import fused_node
from echo.ir.graph import Entry
from echo.passes.patterns.graph_view import ADD, MUL, Fusion, Part, View, local, pairs

NAME = "gru_cell"
_SUB = frozenset({"elemwise_sub", "_npi_subtract", "broadcast_sub"})
_ONES = frozenset({"ones_like", "_ones", "_npi_ones"})
_ONE_MINUS = frozenset({"_rminus_scalar", "_npi_rsubtract_scalar"})


class _Mixed(NamedTuple):
    """(1 - z) n + z h, z a sigmoid and n a tanh; ``nodes`` compute it from the inputs of the sigmoid and the tanh."""

    update: Entry
    candidate: Entry
    before: Entry
    nodes: frozenset[int]


def match(view: View, number: int) -> Fusion | str | None:
    """The cell whose new state this node computes: a fusion, why there is none, or None where there is no cell.

    h' = (1 - z) n + z h, z = sigmoid(x_z + s_z), n = tanh(x_n + sigmoid(x_r + s_r) s_n), where r, z, n are the thirds
    of x, which comes from the input, and of s, from the state.
    """
    mixed = _mixed(view, Entry(number))
    if mixed is None:
        return None
    thirds = _thirds(view, mixed)
    if isinstance(thirds, str):
        return thirds
    (x, s), inner = thirds
    replaced = mixed.nodes | inner
    outside = view.read_outside(replaced, (Entry(number),))
    if outside:
        return f"{outside!r}, inside of the cell, is read from outside"
    name = view.graph.nodes[number].name
    return Fusion(
        pattern=NAME,
        anchor=number,
        nodes=(fused_node(NAME, name, (x, s, mixed.before)),),
        outputs={Entry(number): local(0)},
        replaced=replaced,
        shapes={x: "B,3H", s: "B,3H", mixed.before: "B,H"},
        label="the gates of a GRU cell",
    )


def _mixed(view: View, entry: Entry) -> _Mixed | None:
    terms = view.inputs(entry, ADD)
    for new, old in pairs(terms) if terms else ():
        new_operands, old_operands = view.inputs(new, MUL), view.inputs(old, MUL)
        if new_operands is None or old_operands is None:
            continue
        for rest, candidate in pairs(new_operands):
            for update, before in pairs(old_operands):
                one_minus = _one_minus(view, rest, update)
                if one_minus and view.activated(candidate, "tanh") and view.activated(update, "sigmoid"):
                    inner = one_minus | {entry.node, new.node, old.node, candidate.node, update.node}
                    return _Mixed(update, candidate, before, inner)
    return None


def _one_minus(view: View, entry: Entry, gate: Entry) -> frozenset[int]:
    """The nodes that compute an entry as one minus a gate; none where the entry is anything else."""
    node = view.node(entry)
    if node.op in _ONE_MINUS and node.inputs[0] == gate and float(node.attrs.get("scalar", "0")) == 1:
        return frozenset({entry.node})
    if node.op in _SUB and node.inputs[1] == gate and view.node(node.inputs[0]).op in _ONES:
        return frozenset({entry.node, node.inputs[0].node})
    return frozenset()


def _thirds(view: View, mixed: _Mixed) -> tuple[tuple[Entry, Entry], frozenset[int]] | str:
    z, n = view.activated(mixed.update, "sigmoid"), view.activated(mixed.candidate, "tanh")
    assert z is not None
    assert n is not None
    z_terms, n_terms = view.inputs(z, ADD), view.inputs(n, ADD)
    if z_terms is None or n_terms is None:
        return "a GRU cell whose gates are no sums of a product of the input and one of the state"
    for x_n, product in pairs(n_terms):
        operands = view.inputs(product, MUL)
        for reset, s_n in pairs(operands) if operands else ():
            r = view.activated(reset, "sigmoid")
            r_terms = view.inputs(r, ADD) if r is not None else None
            if r is None or r_terms is None:
                continue
            inner = frozenset({z.node, n.node, product.node, reset.node, r.node})
            return _sources(view, (r_terms, z_terms, (x_n, s_n)), inner)
    return "a GRU cell whose reset gate is not applied to the product of the state"


def _sources(
    view: View, gates: tuple[tuple[Entry, ...], ...], inner: frozenset[int]
) -> tuple[tuple[Entry, Entry], frozenset[int]] | str:
    """The two arrays of which all three gates are thirds: one from the input, one from the state."""
    x_n, s_n = view.part(gates[2][0]), view.part(gates[2][1])
    if x_n is None or s_n is None:
        return "a GRU cell whose gates are no thirds of one product"
    for index, terms in enumerate(gates):
        parts = [view.part(term) for term in terms]
        if {_place(part) for part in parts} != {(x_n.source, index, 3), (s_n.source, index, 3)}:
            return f"a GRU cell with its gates in another order, or from several arrays: {view.node(terms[0]).name!r}"
        inner |= {part.node for part in parts if part}
    return (x_n.source, s_n.source), inner


def _place(part: Part | None) -> tuple[Entry, int, int] | None:
    return (part.source, part.number, part.of) if part else None
