"""The non-linear block of a GRU cell: of mx.rnn, of Gluon, or written by hand."""

from __future__ import annotations

from typing import NamedTuple

from echo.ir.graph import Entry, fused_node
from echo.passes.patterns.graph_view import ADD, MUL, Fusion, Part, Pattern, View, local, pairs
from echo.passes.patterns.gru_reset import GRU_RESET, Mix, sums
from echo.passes.patterns.lstm_cell import order_attrs

_GRU_GATES = "reset, update, candidate"


class _Thirds(NamedTuple):
    """The arrays of which the gates are thirds, from the input and from the state; where the gates stand; the nodes."""

    sources: tuple[Entry, Entry]
    places: tuple[int, ...]
    nodes: frozenset[int]


def match_gru_cell(view: View, number: int) -> Fusion | str | None:
    """The cell whose new state this node computes: a fusion, why there is none, or None where there is no cell.

    h' = (1 - z) n + z h, z = sigmoid(x_z + s_z), n = tanh(x_n + sigmoid(x_r + s_r) s_n), where r, z, n are the thirds
    of x, which comes from the input, and of s, from the state, in any order that both have. Of cells whose reset gate
    stands in front of the product `gru_reset` says more.
    """
    mix = _mix(view, Entry(number))
    if mix is None:
        return None
    thirds = _thirds(view, mix)
    if isinstance(thirds, str):
        return thirds if GRU_RESET.match(view, number) is None else None
    (x, s), places, inner = thirds
    replaced = mix.nodes | inner
    outside = view.read_outside(replaced, (Entry(number),))
    if outside:
        return f"{outside!r}, inside of the cell, is read from outside"
    name = view.graph.nodes[number].name
    return Fusion(
        pattern=GRU_CELL.name,
        anchor=number,
        nodes=(fused_node(GRU_CELL.name, name, (x, s, mix.weighed), order_attrs(places)),),
        outputs={Entry(number): local(0)},
        replaced=replaced,
        shapes={x: "B,3H", s: "B,3H", mix.weighed: "B,H"},
        label="the gates of a GRU cell",
    )


def _mix(view: View, entry: Entry) -> Mix | None:
    """(1 - z) n + z h, z a sigmoid and n a tanh, with the nodes of both."""
    for mix in sums(view, entry):
        if view.activated(mix.rest, "tanh") and view.activated(mix.gate, "sigmoid"):
            return mix._replace(nodes=mix.nodes | {mix.rest.node, mix.gate.node})
    return None


def _thirds(view: View, mix: Mix) -> _Thirds | str:
    z, n = view.activated(mix.gate, "sigmoid"), view.activated(mix.rest, "tanh")
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


def _sources(view: View, gates: tuple[tuple[Entry, ...], ...], inner: frozenset[int]) -> _Thirds | str:
    """The two arrays of which all three gates are thirds: one from the input, one from the state."""
    x_n, s_n = view.part(gates[2][0]), view.part(gates[2][1])
    if x_n is None or s_n is None:
        return "a GRU cell whose gates are no thirds of one product"
    places = []
    for terms in gates:
        parts = [view.part(term) for term in terms]
        place = parts[0].number if parts[0] else -1
        if {_place(part) for part in parts} != {(x_n.source, place, 3), (s_n.source, place, 3)}:
            return f"a GRU cell with gates in two orders, or from several arrays: {view.node(terms[0]).name!r}"
        places.append(place)
        inner |= {part.node for part in parts if part}
    if sorted(places) != [0, 1, 2]:
        return f"a GRU cell whose gates are not the thirds of one product: {_GRU_GATES} are the parts {places}"
    return _Thirds((x_n.source, s_n.source), tuple(places), inner)


def _place(part: Part | None) -> tuple[Entry, int, int] | None:
    return (part.source, part.number, part.of) if part else None


GRU_CELL = Pattern("gru_cell", ADD, match_gru_cell, reads=MUL)
