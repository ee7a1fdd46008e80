"""A whole layer of a vanilla RNN, of tanh or relu: the steps of an unrolled cell."""

from __future__ import annotations

from functools import partial
from typing import Mapping

from echo.ir.graph import Entry
from echo.passes.patterns.graph_view import ACTIVATED, ADD, Fusion, Pattern, View, pairs
from echo.passes.patterns.layer import Cell, Kind, matched

ACTS: Mapping[str, str] = {"relu": "0", "tanh": "2"}  # as the kernel counts them


def match_rnn_layer(view: View, number: int) -> Fusion | str | None:
    """The layer whose last hidden state this node computes: a fusion, why there is none, or None."""
    activation = _activation(view, Entry(number))
    return matched(view, number, _KINDS[activation]) if activation else None


def _activation(view: View, hidden: Entry) -> str:
    return next((name for name in ACTS if hidden.index == 0 and view.activated(hidden, name) is not None), "")


def _rnn_step(view: View, hidden: Entry, activation: str) -> Cell | None:
    total = view.activated(hidden, activation) if hidden.index == 0 else None
    terms = view.inputs(total, ADD) if total is not None else None
    if total is None or terms is None:
        return None
    return Cell(tuple(pairs(terms)), (), (), frozenset({hidden.node, total.node}))


_KINDS = {
    name: Kind("rnn_layer", 1, "an RNN", partial(_rnn_step, activation=name), {"act": number})
    for name, number in ACTS.items()
}


RNN_LAYER = Pattern("rnn_layer", ACTIVATED, match_rnn_layer, reads=ADD, is_layer=True)
