"""The pipeline, in the order in which a graph goes through it. Read this file first.

The frontend turns a symbol and its shapes into a `Graph`; each pass below takes values and gives one; at bind the
runtime binds the rewritten graph, and the native hook applies the plan in MXNet's own gradient pass.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import NamedTuple

from echo.errors import BudgetError, EchoError
from echo.graph import Graph
from echo.implementations import INEXACT
from echo.passes.base import Pass, run
from echo.passes.candidates import FindCandidates
from echo.passes.confirm import Confirm
from echo.passes.differentiate import Differentiate
from echo.passes.estimate import EstimateOverhead
from echo.passes.explain import Explain
from echo.passes.fuse import Fuse, explained, inside, stock, why_no_masks, without_masks
from echo.passes.hint import Hint
from echo.passes.hoist import Hoist, Hoisted, accepted
from echo.passes.partition import Partition
from echo.passes.request import Request
from echo.passes.rewrite import Rewrite, Rewritten
from echo.passes.select import Select, Selection
from echo.patterns.apply import Fused
from echo.plan import Memory, Plan

FUSE = Fuse()  #              Graph -> Fused: kernels of our own in the place of cells and attention scores
HOIST = Hoist()  #            Fused -> Hoisted: products with one weight in the layout that is fastest on this device
PIPELINE: tuple[Pass, ...] = (
    Differentiate(),  #    Graph -> TrainingGraph, from MXNet's own gradient pass; gradients read less where they can
    FindCandidates(),  #   which feature maps may be recomputed, what the user insists on
    Partition(),  #        segments between compute-heavy operators
    EstimateOverhead(),  # seconds of every node, measured on this device
    Select(),  #           the policy's choice, and the best match range of MXNet's memory planner
    Rewrite(),  #          the choice, written into the symbol's attributes
    Confirm(),  #          never worse: MXNet's own planner is asked
    Explain(),  #          the Plan: every feature map, what happens to it, and why
)


class Planned(NamedTuple):
    """The plan, the graph to bind (the user's own where nothing is gained), and a hint for graphs of the same model.

    ``base`` is the user's graph with the plan's fused operators, without its marks.
    """

    plan: Plan
    graph: Graph
    base: Graph
    hint: Hint | None


def plan(request: Request) -> Planned:
    """Fuses operators, and runs the pipeline on what comes out, or on the user's graph where that needs less.

    Raises:
        EchoError: the options, the graph or the budget cannot be met; the message says what was expected.
    """
    fused: Fused = run((FUSE,), [request], request.progress)[Fused]
    found, fused, before = _fused(request, fused)
    hoisted: Hoisted = run((HOIST,), [request, fused], request.progress)[Hoisted]
    if hoisted.fused is None:
        return found._replace(plan=explained(found.plan, hoisted.stays, before))
    user = before or stock(request, fused)
    with contextlib.suppress(BudgetError):
        other = _best(inside(request, hoisted.fused, user))
        if accepted(request, hoisted, found.plan, other.plan):
            return other._replace(plan=explained(other.plan, hoisted.fused, user))
    return found._replace(plan=explained(found.plan, hoisted.declined(), before))


class _Tried(NamedTuple):
    """A plan with some fused operators, or why there is none; and the user's memory, if there are such operators."""

    found: Planned | EchoError
    fused: Fused
    before: Memory | None

    @property
    def needs(self) -> float:
        """The planned bytes; infinite where there is no plan, or one that needs more than the user's graph."""
        if isinstance(self.found, EchoError) or (self.before and self.found.plan.after.total > self.before.total):
            return math.inf
        return self.found.plan.after.planned


def _fused(request: Request, fused: Fused) -> tuple[Planned, Fused, Memory | None]:
    """The plan with the fused operators, or without where that needs less; and the user's memory if it has them.

    Masks as bits take time: within a budget they have to be needed, else to lower what is planned.
    """
    best = plain = _tried(request, fused)
    tried, reason = [plain], "a mask as bits takes time, and the budget is met without"
    if fused.masked is not None and (plain.needs == math.inf or request.options.memory_budget is None):
        masked = _tried(request, fused.masked, BudgetError if request.options.strict else EchoError)
        tried, reason = [plain, masked], why_no_masks(plain.needs, masked.needs, masked.found)
        best = plain if reason else masked
    if best.needs == math.inf and fused.places:
        best = _tried(request, replace(fused, graph=request.graph, places=(), what={}, hidden=0))
        tried.append(best)
    if isinstance(best.found, EchoError):
        errors = [each.found for each in tried if isinstance(each.found, BudgetError)]
        raise min(errors, key=lambda error: error.reachable)
    return best.found, without_masks(request.graph, best.fused, reason), best.before


def _tried(request: Request, fused: Fused, expected: type[EchoError] = BudgetError) -> _Tried:
    before = stock(request, fused) if fused.places else None
    try:
        return _Tried(_best(request if before is None else inside(request, fused, before)), fused, before)
    except expected as error:
        return _Tried(error, fused, before)


def _best(request: Request) -> Planned:
    """Where other bits are allowed, the better of two plans: one that has them, and one that has not."""
    if request.options.exact:
        return _plan(request)
    found = _plan(request)
    if not any(text in INEXACT for mark in found.plan.marks for text in mark.attrs.values()):
        return found
    with contextlib.suppress(BudgetError):
        exact = _plan(replace(request, options=replace(request.options, exact=True)))
        return min(exact, found, key=lambda planned: _worth(request, planned.plan))
    return found


def _worth(request: Request, plan: Plan) -> tuple[float, float]:
    """Smaller is better, as for policies: the bytes, or within a budget the seconds."""
    worth = (plan.after.planned, plan.overhead_seconds)
    return worth if request.options.memory_budget is None else worth[::-1]


def _plan(request: Request) -> Planned:
    values = run(PIPELINE, [request], request.progress)
    result: Plan = values[Plan]
    rewritten: Rewritten = values[Rewritten]
    selection: Selection = values[Selection]
    graph = request.graph if result.changes_nothing else rewritten.graph
    return Planned(result, graph, request.graph, selection.hint)
