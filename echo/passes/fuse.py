"""Fused operators in the user's graph: the first stage, before anything is asked about the graph's training."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar, Iterator

from echo.errors import BudgetError, EchoError
from echo.estimators.footprint import footprint
from echo.estimators.planner import blocks
from echo.graph import Graph
from echo.options import budget_bytes
from echo.passes.candidates import named
from echo.passes.request import Request
from echo.patterns import MASKS, QUIET
from echo.patterns.apply import SMALL, Fused, fuse
from echo.plan import HIDDEN, Memory, Missed, Plan

_LEAST_GAIN = 0.01  # of planned bytes, for masks as bits: they take about as much more time


@dataclass(frozen=True)
class Fuse:
    """Puts fused operators where the graph's structure, shapes and types allow them.

    EcoRNN (MICRO'18), section 5, fuses LSTM cells by hand; Echo (ISCA'20), section 2, names attention scores.
    """

    name: ClassVar[str] = "fuse"
    needs: ClassVar[tuple[type, ...]] = (Request,)
    gives: ClassVar[type] = Fused

    def run(self, request: Request) -> Fused:
        if not request.options.fuse:
            return Fused(request.graph)
        wishes = (*request.options.keep, *request.options.recompute)
        wished = named(request.graph, wishes)
        frontend = request.frontend
        arguments = request.graph, frontend.types, frontend.adds, frontend.device, wished
        found = fuse(*arguments)
        if not all(named(request.graph, (wish,)) or named(found.graph, (wish,)) for wish in wishes):
            return Fused(request.graph)  # the error is about the user's own operators
        if found.places and frontend.why_no_fusion:
            return Fused(request.graph, notes=(f"no operator is fused: {frontend.why_no_fusion}",))
        masks = [place for place in found.places if place[0] in MASKS]
        return replace(fuse(*arguments, without=MASKS), masked=found) if masks else found


def why_no_masks(without: float, masked: float, found: object) -> str:
    """Why masks do not become bits, by the planned bytes without that and with; empty where they do.

    ``found`` is what came of planning with them, perhaps an error.
    """
    if isinstance(found, EchoError) and not isinstance(found, BudgetError):
        return f"masks as bits cannot be planned: {found}"
    if masked < (1 - _LEAST_GAIN) * without:
        return ""
    if masked == math.inf:
        return "masks as bits keep no budget, or need more than the user's own graph"
    return f"nothing to gain: {masked / 2**20:.2f} MB planned with masks as bits, {without / 2**20:.2f} MB without"


def without_masks(graph: Graph, fused: Fused, reason: str) -> Fused:
    """The fused operators that were taken; where there might have been masks as bits among them, why there are none."""
    masked = fused.masked
    if masked is None:
        return fused
    left = [Missed(number, graph.nodes[number].name, name, reason) for name, number in masked.places if name in MASKS]
    others = [missed for missed in masked.missed if missed.pattern in MASKS]
    return replace(fused, masked=None, missed=(*fused.missed, *others, *left))


def inside(request: Request, fused: Fused, before: Memory) -> Request:
    """The request for the graph with fused operators.

    A budget that is a fraction means a fraction of what the user's own graph holds.
    """
    options = request.options
    if options.memory_budget is not None:
        options = replace(options, memory_budget=budget_bytes(options.memory_budget, before.total))
    return replace(request, graph=fused.graph, frontend=request.frontend.on(fused.graph), options=options)


def stock(request: Request, fused: Fused) -> Memory:
    """The memory of the user's own graph, with what its operators hold beyond what is planned."""
    frontend = request.frontend
    hidden = {HIDDEN: fused.hidden} if fused.hidden else {}
    if not request.details:
        planned, _ = frontend.oracle(request.graph, frontend.match_range)
        return Memory(planned, 0, {**request.static, **hidden}, {}, {})
    training = frontend.differentiate()
    found = footprint(training, blocks(training), request.static)
    static = {**found.static, **hidden}
    return Memory(training.planned_bytes, found.peak, static, dict(found.at_peak), dict(found.layers))


def explained(plan: Plan, fused: Fused, before: Memory | None) -> Plan:
    """A plan of the graph with fused operators, as one of the user's; ``before`` is None where there are none."""
    more = tuple(_notes(fused, before is not None))
    if before is None:
        return replace(plan, missed=fused.missed, notes=(*plan.notes, *more))
    kept = plan.notes[:-1] if plan.changes_nothing else plan.notes
    return replace(plan, before=before, applied="hook", fused=fused.places, missed=fused.missed, notes=(*kept, *more))


def _notes(fused: Fused, applied: bool) -> Iterator[str]:
    yield from fused.notes
    if applied:
        kinds = ", ".join(f"{count} x {what}" for what, count in sorted(fused.what.items()))
        same = all(name in MASKS for name, _ in fused.places)
        bits = "every bit stays" if same else "last bits differ from the user's own graph (fuse=False keeps them)"
        yield f"fused: {kinds}; {bits}"
    told = [missed for missed in fused.missed if missed.pattern not in QUIET and not missed.reason.startswith(SMALL)]
    for reason, count in Counter(missed.reason for missed in told).most_common(3):
        first = next(missed.name for missed in told if missed.reason == reason)
        yield f"not fused ({count} x, as {first!r}): {reason}"
