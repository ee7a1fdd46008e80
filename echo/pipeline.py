"""The pipeline, in the order in which a graph goes through it. Read this file first.

The frontend turns a symbol and its shapes into a `Graph`; each pass below takes values and gives one; at bind the
runtime binds the rewritten graph, and the native hook applies the plan in MXNet's own gradient pass.

`BASES` make graphs to choose between, `PIPELINE` plans each of them, and `REFINEMENTS` offer another graph in the place
of the one that was chosen. The thresholds of those choices are in `echo.passes.rules`.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Iterator

from echo.errors import BudgetError, OptionError
from echo.estimators.overhead import Overhead
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
from echo.plans.decisions import Memory, Missed
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
    PackMasks(),  #         Fused -> Masked: masks of Dropout and ReLU as bits, where that lowers planned memory
    BatchProducts(),  #     Fused -> Batched: products with one weight in the layout that is fastest on this device
)


def plan(request: Request) -> Planned:
    """Plans the graphs that `BASES` make, chooses one, and refines it.

    Raises:
        EchoError: the options, the graph or the budget cannot be met; the message says what was expected.
    """
    if request.why_as_it_is:
        request = replace(request, options=replace(request.options, fuse=False))
    best = _best(request)
    if best.missed is not None and request.unreached:
        best = _with_least(request, best)
    return best.result(request)


def _with_least(request: Request, missed: Trial) -> Trial:
    """The trial that misses the budget, with the least that can be reached; or one that keeps it after all.

    The graph that missed it by the least is searched first, and the others in the time that is left.
    """
    errors: list[BudgetError] = []
    for unreached in sorted(request.unreached, key=lambda each: each.bytes):
        if errors and request.deadline.is_over:
            break
        errors.append(unreached.search(request.deadline))
        if errors[-1].reachable <= errors[-1].budget:
            return _best(replace(request, known_only=True))
    return missed.unrefined(missed.fused, min(errors, key=lambda error: error.reachable))


def _best(request: Request) -> Trial:
    """The best of the bases, refined."""
    best = choose(list(bases(request)), request.graph)
    for refinement in REFINEMENTS:
        if request.is_late and best.warmed(request) is None:
            request.note_late()
            break
        if best.planned or refinement.keeps_budgets:
            best = refined(request, best, refinement)
    return best


def bases(request: Request) -> Iterator[Trial]:
    """Yields trials of the bases, the one with the most fused operators first.

    It stops after the first that needs little enough memory; if none does, a trial of the user's own graph comes last.
    A base whose planning fails is left out, and so is one that is larger or slower than the user's own graph.
    """
    fused, has_plan = Fused(request.graph), False
    rejected: Trial | None = None
    seen: tuple[Place, ...] = ()
    worse: dict[Place, Missed] = {}
    for index, stage in enumerate(BASES):
        base, asked = None, _with_its_part(request, len(BASES) - index + 4)
        with request.without(stage.label):
            fused = run((stage,), [request], request.progress)[Fused]
            if fused.places in ((), seen):
                break
            seen = fused.places
            base = trial(asked, fused)
        slower = "" if base is None else base.why_slower(request)
        if base is not None and (base.is_larger or slower):
            worse.update(base.near_misses(request.graph, slower))
            rejected = rejected or base
        elif base is not None:
            yield base
            has_plan = has_plan or base.planned is not None
            if base.is_enough(request) or (has_plan and request.is_late):
                return
    missed = (*fused.missed, *worse.values())
    unfused = replace(fused, graph=request.graph, places=(), missed=missed, counts={}, hidden=0)
    last = _trial_of_users_graph(request, unfused, has_plan, rejected)
    if last is not None:
        yield last


def _with_its_part(request: Request, count: int) -> Request:
    """The request with the time of one of ``count`` things to do.

    These are other bases, the user's own graph, which keeps budgets that no other keeps, and gets the time of two at
    least, and the search for the fewest bytes.
    """
    return request if request.options.memory_budget is None else replace(request, deadline=request.deadline.part(count))


def _trial_of_users_graph(request: Request, unfused: Fused, has_plan: bool, rejected: Trial | None) -> Trial | None:
    """A trial of the user's own graph; None where that fails although another graph has a plan (``has_plan``).

    The user's wishes may be possible with fused operators alone: then the first rejected base, if there is one.
    """
    with request.without("a look at the user's own operators") if has_plan else contextlib.nullcontext():
        try:
            return trial(request, unfused)
        except OptionError:
            if not has_plan and rejected is None:
                raise
    return None if has_plan else rejected


def refined(request: Request, base: Trial, stage: Refinement) -> Trial:
    """Plans the graph that a refinement offers, and returns that trial if it is better.

    Otherwise it returns the chosen trial, with a note that says why the refinement was rejected.
    """
    offer: Offer | None = None
    with request.without(stage.label):
        offer = run((stage,), [request, base.fused], request.progress)[stage.gives]
    if offer is None:
        return base
    if offer.fused is None:
        return base.unrefined(offer.stays)
    variant, reason = None, offer.why_not_tried(request, base.plan) if base.planned else ""
    if not reason:
        with request.without(stage.label):
            variant = _refined_trial(request, base, offer.fused)
        reason = _why_rejected(request, stage, offer, base, variant)
    if (tracing := trace()) is not None:
        tracing.note("chosen", f"rejected: {stage.label}: {reason}" if reason else f"taken: {stage.label}")
    if variant is not None and not reason:
        return variant
    without = base.plan if base.planned else None
    return base.unrefined(offer.declined(request, without, reason), variant.missed if variant else None)


def _refined_trial(request: Request, base: Trial, fused: Fused) -> Trial:
    """Plans a refined graph; where there is no time for the whole search, it starts from the choice of the base."""
    searched = None if base.warmed(request) else trial(request, fused, base.stock)
    warmed = base.warmed(request)
    if warmed is None:
        assert searched is not None
        return searched
    from_base = trial(warmed, fused, base.stock)
    return from_base if searched is None else min(searched, from_base, key=lambda each: _cost(request, each.plan))


def _why_rejected(request: Request, stage: Refinement, offer: Offer, base: Trial, variant: Trial | None) -> str:
    if variant is None:
        return f"{stage.label} cannot be planned"
    if variant.missed:
        missed = variant.missed
        return f"{stage.label} cannot be planned: they need {missed.reachable:,} bytes, the budget is {missed.budget:,}"
    reason = offer.why_not_taken(request, base.plan, variant.plan) if base.planned else ""
    return reason or (f"{stage.label} need more memory than the user's own graph" if variant.is_larger else "")


def trial(request: Request, fused: Fused, stock: Memory | None = None) -> Trial:
    """Plans a graph, or says which budget it misses; ``stock`` is the memory of the user's graph where it is known."""
    inner = request
    if fused.places:
        stock = stock or stock_memory(request, fused)
        inner = inside(request, fused, stock)
    try:
        return Trial(fused, stock, best_plan(inner))
    except BudgetError as error:
        return Trial(fused, stock, None, error)


def best_plan(request: Request) -> Planned:
    """Runs `PIPELINE`; with ``exact=False``, if that plan changes last bits, plans exactly too and takes the cheaper.

    Raises:
        EchoError: a pass failed.
    """
    planned = _run(request)
    if request.options.exact or planned.plan.exact:
        return planned
    with contextlib.suppress(BudgetError):
        exact = _run(replace(request, options=replace(request.options, exact=True)))
        return min(exact, planned, key=lambda candidate: _cost(request, candidate.plan))
    return planned


def _cost(request: Request, plan: Plan) -> tuple[float, float]:
    """The value to minimize, as in policies: first the bytes, or within a budget first the seconds."""
    cost = (plan.after.chosen, plan.overhead_seconds)
    return cost if request.options.memory_budget is None else cost[::-1]


def _run(request: Request) -> Planned:
    started = time.monotonic()
    values = run(PIPELINE, [request], request.progress)
    other_seconds = time.monotonic() - started - values[Selection].search_seconds
    result: Plan = values[Plan]
    rewritten: Rewritten = values[Rewritten]
    selection: Selection = values[Selection]
    graph = request.graph if result.changes_nothing else rewritten.graph
    overhead: Overhead = values[Overhead]
    return Planned(result, graph, request.graph, selection.warm_start, overhead.is_timed, other_seconds)
