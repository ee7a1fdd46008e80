"""A whole GRU layer: the steps of an unrolled cell."""

from __future__ import annotations

from echo.ir.graph import Entry
from echo.passes.patterns import gru_cell
from echo.passes.patterns.graph_view import Fusion, View
from echo.passes.patterns.layer import Cell, Kind, matched

NAME = "gru_layer"


def match(view: View, number: int) -> Fusion | str | None:
    """The layer whose last hidden state this node computes: a fusion, why there is none, or None."""
    return matched(view, number, _KIND)


def _cell(view: View, hidden: Entry) -> Cell | None:
    cell = gru_cell.match(view, hidden.node) if hidden.index == 0 else None
    if not isinstance(cell, Fusion) or "order" in cell.nodes[0].attrs:  # the layer's kernel knows one order only
        return None
    of_input, of_state, before = cell.nodes[0].inputs
    return Cell(((of_input, of_state),), (), (), cell.replaced, before)


_KIND = Kind(NAME, 3, "a GRU", _cell)
