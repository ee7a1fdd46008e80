"""A whole LSTM layer: the steps of an unrolled cell."""

from __future__ import annotations

from echo.ir.graph import Entry
from echo.passes.patterns.graph_view import ACTIVATED, ADD, MUL, Fusion, Pattern, View, pairs
from echo.passes.patterns.layer import Cell, Kind, matched
from echo.passes.patterns.lstm_cell import LSTM_CELL


def match_lstm_layer(view: View, number: int) -> Fusion | str | None:
    """The layer whose last hidden state this node computes: a fusion, why there is none, or None."""
    return matched(view, number, _LSTM)


def _lstm_step(view: View, hidden: Entry) -> Cell | None:
    """The cell of this hidden state, if it has no layer norm."""
    cell = LSTM_CELL.match(view, hidden.node) if hidden.index == 0 else None
    if not isinstance(cell, Fusion) or len(cell.nodes[0].inputs) != 2:
        return None
    fused = cell.nodes[0]
    pre, before = fused.inputs
    attrs = {"order": fused.attrs["order"]} if "order" in fused.attrs else {}
    terms = view.inputs(pre, ADD)
    after = tuple(entry for entry in cell.outputs if entry != hidden)
    return Cell(tuple(pairs(terms)), (before,), after, cell.replaced | {pre.node}, attrs=attrs) if terms else None


_LSTM = Kind("lstm_layer", 4, "an LSTM", _lstm_step)


LSTM_LAYER = Pattern("lstm_layer", MUL, match_lstm_layer, reads=ACTIVATED, is_layer=True)
