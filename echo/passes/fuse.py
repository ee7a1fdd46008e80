"""Fused operators in the user's graph: the first stage, before anything is asked about the graph's training."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar, Iterator

from echo.errors import GraphError
from echo.passes.candidates import named
from echo.passes.explain import memory
from echo.passes.patterns import LAYERS, MASKS, QUIET
from echo.passes.patterns.apply import SMALL, Fused, fuse
from echo.passes.patterns.recurrence import normed_state
from echo.passes.request import Request
from echo.plans.decisions import HIDDEN, Memory
from echo.plans.options import budget_bytes
from echo.plans.plan import Plan

_BITS = ("no operator is fused that would change last bits: {name} normalizes a product of the state of a recurrent "
         "cell, which makes each rounding grow from step to step (exact=False fuses)")  # fmt: skip


@dataclass(frozen=True)
class Fuse:
    """Puts fused operators where the graph's structure, shapes and types allow them.

    EcoRNN (MICRO'18), section 5, fuses LSTM cells by hand; Echo (ISCA'20), section 2, names attention scores. Without
    ``layers``, the steps of a layer stay apart: what is between them then runs step by step on the way back, too.
    """

    name: ClassVar[str] = "fuse"
    needs: ClassVar[tuple[type, ...]] = (Request,)
    gives: ClassVar[type] = Fused
    layers: bool = True

    @property
    def what(self) -> str:
        """What it puts in, for the user's eyes."""
        return "fused operators, whole layers too" if self.layers else "fused operators"

    def run(self, request: Request) -> Fused:
        if not request.options.fuse:
            return Fused(request.graph)
        norm = normed_state(request.graph) if request.options.exact else ""
        if norm:
            return Fused(request.graph, notes=(_BITS.format(name=repr(norm)),), bits=norm)
        wishes, frontend = request.options.wishes, request.frontend
        wished, without = named(request.graph, wishes), MASKS if self.layers else MASKS | LAYERS
        found = fuse(request.graph, frontend.types, frontend.adds, frontend.device, wished, without)
        if not all(named(request.graph, (wish,)) or named(found.graph, (wish,)) for wish in wishes):
            return Fused(request.graph)  # the error is about the user's own operators
        if found.places and frontend.why_no_fusion:
            return Fused(request.graph, notes=(f"no operator is fused: {frontend.why_no_fusion}",))
        return replace(found, graph=frontend.runnable(found.graph))


def inside(request: Request, fused: Fused, before: Memory) -> Request:
    """The request for the graph with fused operators.

    A budget that is a fraction means a fraction of what the user's own graph holds.

    Raises:
        GraphError: MXNet finds other arguments in it than in the user's graph, or in another order.
    """
    options, frontend = request.options, request.frontend.on(fused.graph)
    wanted, found = list(request.frontend.argument_names()), list(frontend.argument_names())
    if found != wanted or len(fused.graph.heads) != len(request.graph.heads):
        raise GraphError(f"fused operators would change the arguments: expected {wanted}, got {found}")
    if options.memory_budget is not None:
        options = replace(options, memory_budget=budget_bytes(options.memory_budget, before.total))
    return replace(request, graph=fused.graph, frontend=frontend, options=options)


def stock(request: Request, fused: Fused) -> Memory:
    """The memory of the user's own graph, with what its operators hold beyond what is planned."""
    frontend = request.frontend
    if request.details:
        training = frontend.differentiate()
        found = memory(request, training, training.planned_bytes)
    else:
        found = Memory(frontend.oracle(request.graph, frontend.match_range)[0], 0, request.static, {}, {})
    return replace(found, static={**found.static, HIDDEN: fused.hidden}) if fused.hidden else found


def explained(plan: Plan, fused: Fused, before: Memory | None) -> Plan:
    """A plan of the graph with fused operators, as one of the user's; ``before`` is None where there are none."""
    more = tuple(_notes(fused, before is not None))
    if before is None:
        return replace(plan, missed=fused.missed, notes=(*plan.notes, *more))
    notes = (*plan.notes, *more)
    return replace(plan, before=before, applied="hook", fused=fused.places, missed=fused.missed, notes=notes)


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
