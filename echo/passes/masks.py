"""Masks of one bit an element, in the place of MXNet's numbers: less memory, and a little more time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from echo.ir.graph import Entry
from echo.passes.candidates import named
from echo.passes.fuse import with_operators
from echo.passes.patterns import MASKS, PATTERNS
from echo.passes.patterns.apply import Fused, find, near_miss
from echo.passes.request import Request
from echo.passes.rules import RULES
from echo.plans.plan import Plan
from echo.system.terminal import MB


@dataclass(frozen=True)
class Masked:
    """``stays`` is the graph as it was, ``fused`` the graph with masks as bits, None where it has no such masks.

    ``bytes`` are the bytes of those masks as numbers.
    """

    stays: Fused
    fused: Fused | None = None
    bytes: int = 0

    def declined(self, request: Request, without: Plan | None, reason: str) -> Fused:
        """Returns the unchanged graph, with the masks that are not packed into bits as near-misses."""
        if self.fused is None:
            return self.stays
        small = without is not None and self._is_small(without)
        places = [place for place in self.fused.places if place[0] in MASKS]
        missed = (near_miss(request.graph, place, reason, small) for place in places)
        return replace(self.stays, missed=(*self.stays.missed, *missed))

    def _is_small(self, without: Plan) -> bool:
        return self.bytes < RULES.mask_bytes * without.after.chosen

    def why_not_tried(self, request: Request, without: Plan) -> str:
        """Empty where the masks are large enough; within a budget, recomputation also has to cost more than bits."""
        if self._is_small(without):
            return f"too small: the masks have {self.bytes:,} of {without.after.chosen:,} bytes"
        slow = request.options.memory_budget is None or without.overhead > RULES.mask_time
        return "" if slow else "a mask as bits takes time, and the budget is met without"

    def why_not_taken(self, request: Request, without: Plan, refined: Plan) -> str:
        """Empty where bits lower planned memory, or within a budget save time."""
        if request.options.memory_budget is not None:
            if refined.overhead + RULES.mask_time < without.overhead:
                return ""
            return f"nothing to gain: +{refined.overhead:.1%} time with masks as bits, +{without.overhead:.1%} without"
        before, after = without.after.chosen, refined.after.chosen
        if after < (1 - RULES.mask_bytes) * before:
            return ""
        return f"nothing to gain: {after / MB:.2f} MB planned with masks as bits, {before / MB:.2f} MB without"


@dataclass(frozen=True)
class PackMasks:
    """Adds masks as bits to the fused operators: of Dropout, and of ReLUs whose output no other gradient reads.

    Gist (Jain et al., ISCA 2018) keeps such masks of ReLUs. Outputs, gradients and random numbers stay as they are.
    """

    name: ClassVar[str] = "pack masks"
    label: ClassVar[str] = "masks as bits"
    keeps_budgets: ClassVar[bool] = True
    needs: ClassVar[tuple[type, ...]] = (Request, Fused)
    gives: ClassVar[type] = Masked

    def run(self, request: Request, fused: Fused) -> Masked:
        frontend, options = request.frontend, request.options
        if not options.fuse or frontend.why_no_fusion:
            return Masked(fused)
        wished = named(request.graph, options.wishes)
        masks, near_misses = find(request.graph, wished, frozenset(PATTERNS) - MASKS, setting=frontend.setting)
        if not masks:
            return Masked(replace(fused, missed=(*fused.missed, *near_misses)))
        without = frozenset(PATTERNS) - MASKS - {name for name, _ in fused.places}
        packed = with_operators(request, without)
        missed = (*fused.missed, *(near_miss for near_miss in packed.missed if near_miss.pattern in MASKS))
        stays = replace(fused, missed=missed)
        places = [number for name, number in packed.places if name in MASKS]
        if not places:
            return Masked(stays)
        types, graph = frontend.types(), frontend.runnable(packed.graph)
        total = sum(types[Entry(number)].bytes for number in places)
        return Masked(stays, replace(packed, graph=graph, missed=missed, notes=fused.notes, bits=fused.bits), total)
