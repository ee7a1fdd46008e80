"""The pipeline, in the order in which a graph goes through it. Read this file first.

The frontend turns a symbol and its shapes into a `Graph`; each pass below takes values and gives one; at bind the
runtime binds the rewritten graph, and the native hook applies the plan in MXNet's own gradient pass.

`BASES` make graphs to choose between, `PIPELINE` plans each of them, and `REFINEMENTS` offer another graph in the place
of the one that was chosen. The thresholds of those choices are in `echo.passes.rules`.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Iterator

from echo.errors import BudgetError, OptionError
from echo.estimators.inplace import why_as_it_is
from echo.passes.base import Pass, run
from echo.passes.candidates import FindCandidates
from echo.passes.confirm import Confirm
from echo.passes.differentiate import Differentiate
from echo.passes.estimate import EstimateOverhead
from echo.passes.explain import Explain
from echo.passes.fuse import Fuse
from echo.passes.layouts import BatchProducts
from echo.passes.masks import PackMasks
from echo.passes.partition import Partition
from echo.passes.patterns.apply import Fused, Place
from echo.passes.request import Request
from echo.passes.rewrite import Rewrite, Rewritten
from echo.passes.select import Select, Selection
from echo.passes.trace import trace
from echo.passes.trial import Offer, Planned, Refinement, Trial, choose, inside, stock_memory
from echo.plans.decisions import Memory
from echo.plans.plan import Plan

BASES = (
    Fuse(),  #              Graph -> Fused: kernels of our own in the place of layers, cells and attention scores
    Fuse(layers=False),  #  the same without whole layers; the last base is the user's own graph
)
PIPELINE: tuple[Pass, ...] = (
    Differentiate(),  #     Graph -> TrainingGraph, from MXNet's own gradient pass; gradients read less where they can
    FindCandidates(),  #    which feature maps may be recomputed, what the user insists on
    Partition(),  #         segments between compute-heavy operators
    EstimateOverhead(),  #  seconds of every node, measured on this device
    Select(),  #            the policy's choice, and the best match range of MXNet's memory planner
    Rewrite(),  #           the choice, written into the symbol's attributes
    Confirm(),  #           never worse: MXNet's own planner is asked
    Explain(),  #           the Plan: every feature map, what happens to it, and why
)
REFINEMENTS: tuple[Refinement, ...] = (
    PackMasks(),  #         Fused -> Masked: masks of Dropout and ReLU as bits, where that lowers what is planned
    BatchProducts(),  #     Fused -> Batched: products with one weight in the layout that is fastest on this device
)


def plan(request: Request) -> Planned:
    """Plans the graphs that `BASES` make, chooses one, and refines it.

    Raises:
        EchoError: the options, the graph or the budget cannot be met; the message says what was expected.
    """
    if why_as_it_is(request.graph, request.frontend.device):
        request = replace(request, options=replace(request.options, fuse=False))
    best = choose(list(bases(request)))
    for refinement in REFINEMENTS:
        if request.is_late:
            request.note_late()
            break
        if best.planned or refinement.keeps_budgets:
            best = refined(request, best, refinement)
    return best.result(request)


def bases(request: Request) -> Iterator[Trial]:
    """The graphs with the most fused operators first, up to one that is enough, else the user's own at last.

    What fails costs that graph alone. None needs more than the user's own.
    """
    fused, found = Fused(request.graph), False
    seen: tuple[Place, ...] = ()
    for stage in BASES:
        tried = None
        with request.without(stage.what):
            fused = run((stage,), [request], request.progress)[Fused]
            if fused.places in ((), seen):
                break
            seen = fused.places
            tried = trial(request, fused)
        if tried is not None and not tried.is_larger:
            yield tried
            found = found or tried.planned is not None
            if tried.is_enough(request) or (found and request.is_late):
                return
    unfused = _unfused(request, replace(fused, graph=request.graph, places=(), what={}, hidden=0), found)
    if unfused is not None:
        yield unfused


def _unfused(request: Request, unfused: Fused, found: bool) -> Trial | None:
    """The user's own graph; None where that fails while another graph was ``found``."""
    with request.without("a look at the user's own operators") if found else contextlib.nullcontext():
        try:
            return trial(request, unfused)
        except OptionError:  # what the user insists on may be had with fused operators alone
            if not found:
                raise
    return None


def refined(request: Request, base: Trial, stage: Refinement) -> Trial:
    """What a refinement makes of the chosen graph, or that graph with the reason why it stays."""
    offer: Offer | None = None
    with request.without(stage.what):
        offer = run((stage,), [request, base.fused], request.progress)[stage.gives]
    if offer is None:
        return base
    if offer.fused is None:
        return base.left(offer.stays)
    other, reason = None, offer.why_not_tried(request, base.plan) if base.planned else ""
    if not reason:
        with request.without(stage.what):
            other = trial(request, offer.fused, base.stock)
        reason = _why_left(request, stage, offer, base, other)
    if (tracing := trace()) is not None:
        tracing.note("chosen", f"left: {stage.what}: {reason}" if reason else f"taken: {stage.what}")
    if other is not None and not reason:
        return other
    return base.left(offer.declined(request, reason), other.missed if other else None)


def _why_left(request: Request, stage: Refinement, offer: Offer, base: Trial, other: Trial | None) -> str:
    if other is None:
        return f"{stage.what} cannot be planned"
    if other.missed:
        missed = other.missed
        return f"{stage.what} cannot be planned: they need {missed.reachable:,} bytes, the budget is {missed.budget:,}"
    return offer.why_not_taken(request, base.plan, other.plan) if base.planned else ""


def trial(request: Request, fused: Fused, stock: Memory | None = None) -> Trial:
    """The graph with its plan, or with the budget that it misses; ``stock`` is the user's memory where it is known."""
    inner = request
    if fused.places:
        stock = stock or stock_memory(request, fused)
        inner = inside(request, fused, stock)
    try:
        return Trial(fused, stock, best_plan(inner))
    except BudgetError as error:
        return Trial(fused, stock, None, error)


def best_plan(request: Request) -> Planned:
    """Runs `PIPELINE`; where other bits are allowed, the better of two plans: one that has them, and one that has not.

    Raises:
        EchoError: what a pass raised.
    """
    found = _run(request)
    if request.options.exact or found.plan.exact:
        return found
    with contextlib.suppress(BudgetError):
        exact = _run(replace(request, options=replace(request.options, exact=True)))
        return min(exact, found, key=lambda planned: _worth(request, planned.plan))
    return found


def _worth(request: Request, plan: Plan) -> tuple[float, float]:
    """Smaller is better, as for policies: the bytes, or within a budget the seconds."""
    worth = (plan.after.chosen, plan.overhead_seconds)
    return worth if request.options.memory_budget is None else worth[::-1]


def _run(request: Request) -> Planned:
    values = run(PIPELINE, [request], request.progress)
    result: Plan = values[Plan]
    rewritten: Rewritten = values[Rewritten]
    selection: Selection = values[Selection]
    graph = request.graph if result.changes_nothing else rewritten.graph
    return Planned(result, graph, request.graph, selection.hint)
