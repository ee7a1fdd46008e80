"""Operators that read their inputs through their inputs alone, in the forward pass and in their gradients.

A map may run again, move, come out of bits or be given up early only if every operator that reads it is one of these
by the table (`echo.ir.ops`). Others keep an address or a state between the passes: what they read has to stay where it
was. The table is no matter of opinion: ``tests/operators`` holds every operator that MXNet registers against stock
MXNet, with its inputs and outputs recomputed, moved and unpacked by force, and its memory taken over by others.

The table stands on one condition: what stock MXNet does not compute in place must not be computed in place now. A map
that runs again has one reader less, and MXNet then works in place where it did not before. An array that is computed
over one in a layout of oneDNN takes on that layout, and max Pooling's gradient, which reads where its maxima are by
the layout of the forward pass, finds others; the gradients of some operators come out as other numbers
(`echo.ir.op_spec.OpSpec.in_place`).
"""

from __future__ import annotations

from typing import Mapping

from echo.ir.ops import spec


def why_not_reader(op: str, attrs: Mapping[str, str], position: int = 0) -> str:
    """Why the map that an operator reads at this input has to stay where it is; empty if it may run again, or move."""
    facts = spec(op)
    if not facts.reads_plainly:
        return f"{op} is not known to read its inputs through its inputs alone"
    if facts.movable_inputs is not None and position not in facts.movable_inputs:
        return f"input {position} of {op} must not move"
    if facts.in_place(attrs):
        return f"the gradient of {op} with {facts.in_place.shown(attrs)} depends on whether it works in place"
    if facts.draws(attrs):  # and it crashes
        return f"{op} with {facts.draws.shown(attrs)} was never tried"
    return ""
