"""A whole GRU layer: the steps of an unrolled cell."""

from __future__ import annotations

from echo.ir.graph import Entry
from echo.passes.patterns.graph_view import ADD, MUL, Fusion, Pattern, View
from echo.passes.patterns.gru_cell import GRU_CELL
from echo.passes.patterns.layer import Cell, Kind, matched


def match_gru_layer(view: View, number: int) -> Fusion | str | None:
    """The layer whose last hidden state this node computes: a fusion, why there is none, or None."""
    return matched(view, number, _GRU)


def _gru_step(view: View, hidden: Entry) -> Cell | None:
    cell = GRU_CELL.match(view, hidden.node) if hidden.index == 0 else None
    if not isinstance(cell, Fusion) or "order" in cell.nodes[0].attrs:  # the layer's kernel knows one order only
        return None
    of_input, of_state, before = cell.nodes[0].inputs
    return Cell(((of_input, of_state),), (), (), cell.replaced, before)


_GRU = Kind("gru_layer", 3, "a GRU", _gru_step)


GRU_LAYER = Pattern("gru_layer", ADD, match_gru_layer, reads=MUL, is_layer=True)
