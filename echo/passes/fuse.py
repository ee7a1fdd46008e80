"""Fused operators in the user's graph: the first stage, before anything is asked about the graph's training."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar, Iterator

from echo.estimators.footprint import footprint
from echo.estimators.planner import blocks
from echo.options import budget_bytes
from echo.passes.candidates import named
from echo.passes.request import Request
from echo.patterns import MASKS, QUIET
from echo.patterns.apply import SMALL, Fused, fuse
from echo.plan import HIDDEN, Memory, Missed, Plan


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
        return _ranked(request, found, fuse(*arguments, without=MASKS)) if masks else found


def _ranked(request: Request, found: Fused, without: Fused) -> Fused:
    """Masks as bits, or as they are: they take time, and for a while more memory, until they are bits.

    Within a budget the faster first; else those that need less memory before anything is recomputed.
    """
    if request.options.memory_budget is not None:
        return replace(_explained(request, found, without, "a mask as bits takes time, and the budget is met without"), other=found)
    bits, numbers = (request.frontend.on(each.graph).differentiate().planned_bytes for each in (found, without))
    if bits >= numbers:
        sizes = f"{bits / 2**20:.1f} MB planned with masks as bits, {numbers / 2**20:.1f} MB without"
        return _explained(request, found, without, f"nothing to gain: {sizes}")
    return replace(found, other=_explained(request, found, without, "with masks as bits more is needed in the end"))


def _explained(request: Request, found: Fused, without: Fused, reason: str) -> Fused:
    """``without`` masks as bits, and why there are none where ``found`` has them."""
    names = request.graph.nodes
    left = [Missed(number, names[number].name, name, reason) for name, number in found.places if name in MASKS]
    others = [missed for missed in found.missed if missed.pattern in MASKS]
    return replace(without, missed=(*without.missed, *others, *left))


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
        yield f"fused: {kinds}; last bits differ from the user's own graph (fuse=False keeps them)"
    told = [missed for missed in fused.missed if missed.pattern not in QUIET and not missed.reason.startswith(SMALL)]
    for reason, count in Counter(missed.reason for missed in told).most_common(3):
        first = next(missed.name for missed in told if missed.reason == reason)
        yield f"not fused ({count} x, as {first!r}): {reason}"
