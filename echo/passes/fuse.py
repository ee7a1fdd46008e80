"""Fused operators in the user's graph: the first stage, before the graph is differentiated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from echo.passes.candidates import named
from echo.passes.patterns import LAYERS, MASKS
from echo.passes.patterns.apply import Fused, fuse
from echo.passes.patterns.recurrence import normed_state
from echo.passes.request import Request

_BITS = ("no operator is fused that would change last bits: {name} normalizes a product of the state of a recurrent "
         "cell, which makes each rounding grow from step to step (exact=False fuses)")  # fmt: skip


@dataclass(frozen=True)
class Fuse:
    """Puts fused operators where the graph's structure, shapes and types allow them.

    EcoRNN (MICRO'18), section 5, fuses LSTM cells by hand; Echo (ISCA'20), section 2, names attention scores. Without
    ``layers``, the steps of a layer stay apart, so that backward runs them one by one, too.
    """

    name: ClassVar[str] = "fuse"
    needs: ClassVar[tuple[type, ...]] = (Request,)
    gives: ClassVar[type] = Fused
    layers: bool = True

    @property
    def label(self) -> str:
        """What the pass puts in, in messages for the user."""
        return "fused operators, whole layers too" if self.layers else "fused operators"

    def run(self, request: Request) -> Fused:
        if not request.options.fuse:
            return Fused(request.graph)
        norm = normed_state(request.graph) if request.options.exact else ""
        if norm:
            return Fused(request.graph, notes=(_BITS.format(name=repr(norm)),), bits=norm)
        wishes, frontend = request.options.wishes, request.frontend
        wished, without = named(request.graph, wishes), MASKS if self.layers else MASKS | LAYERS
        fused = fuse(request.graph, frontend.types, frontend.adds, wished, without)
        if not all(named(request.graph, (wish,)) or named(fused.graph, (wish,)) for wish in wishes):
            return Fused(request.graph)  # so that the error names the user's own operators
        if fused.places and frontend.why_no_fusion:
            return Fused(request.graph, notes=(f"no operator is fused: {frontend.why_no_fusion}",))
        return replace(fused, graph=frontend.runnable(fused.graph))
