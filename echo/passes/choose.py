"""The choice between graphs: plans of each base, the best of them, and its refinements."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace
from typing import Iterable, Iterator, NamedTuple, Sequence

from echo.errors import BudgetError, OptionError
from echo.estimators.cost_model import CostModel
from echo.ir.training_graph import TrainingGraph
from echo.passes.analysis import Candidates, EstimateCost
from echo.passes.fuse import Fuse
from echo.passes.pass_manager import Pass, run, stage_dump
from echo.passes.patterns.apply import Fused, MatchSite
from echo.passes.refinements import Proposal, Refinement
from echo.passes.request import Request
from echo.passes.rewrite import NOT_WORTH, Rewritten
from echo.passes.select import Select, Selection
from echo.passes.variant import (
    Analysis,
    PlanResult,
    Variant,
    choose,
    inside,
    memory_before,
    stock_seconds,
)
from echo.plans.decisions import Memory, MissedFusion
from echo.plans.plan import Plan
from echo.policies.problem import Segments

# Of the effort of a search, on further bases: all of it finds 3 % fewer bytes at most. One that is chosen gets all.
_GLANCE = 0.25


class Stages(NamedTuple):
    """The stages of planning (`echo.pipeline`): graphs to choose between, the passes that plan each, refinements."""

    bases: Sequence[Fuse]
    pipeline: Sequence[Pass]
    refinements: Sequence[Refinement]


def plan(request: Request, stages: Stages) -> PlanResult:
    """Plans the graphs that the bases make, chooses one, and refines it.

    Raises:
        EchoError: the options, the graph or the budget cannot be met; the message says what was expected.
    """
    if request.memory_frozen_reason:
        request = replace(request, options=replace(request.options, fuse=False))
    request = replace(request, stock_seconds=functools.cache(functools.partial(stock_seconds, request)))
    needs_original = request.details and request.options.fuses
    with request.framework.differentiating() if needs_original else contextlib.nullcontext():
        best = _deepened(request, stages, _best(request, stages))
    if best.missed is not None and request.unreached:
        best = _with_least(request, stages, best)
    best.check_time(request)
    return best.result(request)


def _deepened(request: Request, stages: Stages, best: Variant) -> Variant:
    """The variant with compute-heavy operators that run twice, where its seconds have room for them and they pay.

    Those of a temporal fusion transformer halve its bytes in a tenth of the time that the searches before take. On a
    busy machine such searches end late: this one has all the time that is left, but for what follows it.
    """
    planned = best.planned
    if planned is None or planned.analysis is None:
        return best
    if why := best.why_light(request):
        return best.with_reason(why)
    if request.deadline.left <= planned.other_seconds:
        request.note_late()
        return best
    deeper = best
    with request.fallback_scope("compute-heavy operators that run twice"):
        inner, *values = planned.analysis
        inner = replace(inner, light=planned.schedule, deadline=request.deadline.rest(planned.other_seconds))
        deeper = replace(best, planned=best_plan(inner, stages.pipeline, values))
    saves = deeper.plan.after.total < best.plan.after.total and not deeper.is_over_time(request)
    return deeper.deeper_than(best) if saves else best.with_reason(NOT_WORTH)


def _with_least(request: Request, stages: Stages, missed: Variant) -> Variant:
    """The variant that misses the budget, with the least that can be reached; or one that keeps it after all.

    The graph that missed it by the least is searched first, and the others in the time that is left.
    """
    errors: list[BudgetError] = []
    for unreached in sorted(request.unreached, key=lambda each: each.bytes):
        if errors and request.deadline.is_over:
            break
        errors.append(unreached.search(request.deadline))
        if errors[-1].reachable <= errors[-1].budget:
            return _best(replace(request, known_only=True), stages)
    return missed.without_refinement(missed.fused, min(errors, key=lambda error: error.reachable))


def _best(request: Request, stages: Stages) -> Variant:
    best = _searched(request, stages, choose(list(_bases(request, stages)), request.graph))
    for refinement in stages.refinements:
        if request.is_late and best.warmed(request) is None:
            request.note_late()
            break
        if best.planned or refinement.keeps_budgets:
            best = _refined(request, stages, best, refinement)
    return best


def _searched(request: Request, stages: Stages, best: Variant) -> Variant:
    """The variant after a search with all of its effort, where it had a part of it and there is time."""
    if best.planned is None or best.planned.analysis is None or best.planned.analysis.request.effort == 1:
        return best
    if request.is_late:
        request.note_late()
        return best
    variants = [best]
    with request.fallback_scope("a longer search"):
        variants.append(plan_variant(request, stages.pipeline, best.fused, best.before))
    return min(variants, key=lambda each: _cost(request, each.plan))


def _bases(request: Request, stages: Stages) -> Iterator[Variant]:
    """Yields variants of the bases, the one with the most fused operators first.

    It stops after the first that needs little enough memory; if none does, a variant of the original graph comes last.
    A base whose planning fails is left out, and so is one that is larger or slower than the original graph. If all of
    them take longer than ``max_time``, the fastest comes last: a refinement may make it faster.
    """
    fused, has_plan = Fused(request.graph), False
    rejected: list[Variant] = []
    seen: tuple[MatchSite, ...] = ()
    worse: dict[MatchSite, MissedFusion] = {}
    for index, stage in enumerate(stages.bases):
        base, asked = None, _with_its_part(request, len(stages.bases) - index + 4)
        with request.fallback_scope(stage.label):
            fused = run((stage,), [request], request.progress)[Fused]
            if fused.match_sites in ((), seen):
                break
            seen = fused.match_sites
            base = plan_variant(_glance(asked) if has_plan else asked, stages.pipeline, fused)
        slower = "" if base is None else base.why_slower(request)
        if base is not None and (base.is_larger or slower):
            worse.update(base.near_misses(request.graph, slower))
            rejected.append(base)
        elif base is not None:
            yield base
            has_plan = has_plan or base.planned is not None
            if base.is_enough(request) or (has_plan and request.is_late):
                return
    missed = (*fused.missed, *worse.values())
    unfused = replace(fused, graph=request.graph, match_sites=(), missed=missed, counts={}, hidden=0)
    last = _unfused_variant(request, stages, unfused, has_plan, rejected)
    if last is not None and last.is_over_time(request):
        last = None if has_plan else _fastest(request, stages, [*rejected, last])
    if last is not None:
        yield last


def _fastest(request: Request, stages: Stages, slow: Sequence[Variant]) -> Variant:
    """The fastest of graphs that take longer than ``max_time``, each within the bytes of the original one.

    The last is the original one. Within ``max_time``, nothing is recomputed in the others, which makes some larger.
    """
    *others, original = slow
    allowed = replace(request.options, max_time=None, max_overhead=None, memory_budget=original.plan.before.total)
    found = [original]
    for base in others:
        if base.is_larger and base.seconds < original.seconds:
            with request.fallback_scope("recomputation in the fastest graph"):
                base = plan_variant(replace(request, options=allowed), stages.pipeline, base.fused, base.before)
        if base.planned is not None and not base.is_larger:
            found.append(base)
    return min(found, key=lambda each: each.seconds)


def _with_its_part(request: Request, count: int) -> Request:
    """The request with the time of one of ``count`` things to do.

    These are other bases, the original graph, which keeps budgets that no other keeps, and gets the time of two at
    least, and the search for the fewest bytes.
    """
    return request if request.options.memory_budget is None else replace(request, deadline=request.deadline.part(count))


def _glance(request: Request) -> Request:
    """The request for a base that is probably not chosen, since another one has a plan."""
    return replace(request, effort=_GLANCE)


def _unfused_variant(
    request: Request, stages: Stages, unfused: Fused, has_plan: bool, rejected: Sequence[Variant]
) -> Variant | None:
    """A variant of the original graph; None where that fails although another graph has a plan (``has_plan``).

    The user's constraints may be possible with fused operators alone: then the first rejected base, if there is one.
    """
    with request.fallback_scope("a look at the user's own operators") if has_plan else contextlib.nullcontext():
        try:
            return plan_variant(_glance(request) if has_plan else request, stages.pipeline, unfused)
        except OptionError:
            if not has_plan and not rejected:
                raise
    return None if has_plan else rejected[0]


def _refined(request: Request, stages: Stages, base: Variant, stage: Refinement) -> Variant:
    """Plans the graph that a refinement offers, and returns that variant if it is better.

    Otherwise it returns the chosen variant, with a note that says why the refinement was rejected.
    """
    proposal: Proposal | None = None
    with request.fallback_scope(stage.label):
        proposal = run((stage,), [request, base.fused], request.progress)[stage.gives]
    if proposal is None:
        return base
    if proposal.fused is None:
        return base.without_refinement(proposal.unchanged)
    variant, reason = None, proposal.why_not_tried(request, base.plan) if base.planned else ""
    if not reason:
        with request.fallback_scope(stage.label):
            variant = _refined_variant(request, stages, base, proposal.fused)
        reason = _why_rejected(request, stage, proposal, base, variant)
    if (dump := stage_dump()) is not None:
        dump.note("chosen", f"rejected: {stage.label}: {reason}" if reason else f"taken: {stage.label}")
    if variant is not None and not reason:
        return variant
    without = base.plan if base.planned else None
    return base.without_refinement(proposal.rejected(request, without, reason), variant.missed if variant else None)


def _refined_variant(request: Request, stages: Stages, base: Variant, fused: Fused) -> Variant:
    """Plans a refined graph; where there is no time for the whole search, it starts from the choice of the base."""
    searched, warmed = None, base.warmed(request)
    if warmed is None:
        searched = plan_variant(request, stages.pipeline, fused, base.before)
        warmed = base.warmed(request)  # that search may have had to end
        if warmed is None:
            return searched
    from_base = plan_variant(warmed, stages.pipeline, fused, base.before)
    return from_base if searched is None else min(searched, from_base, key=lambda each: _cost(request, each.plan))


def _why_rejected(
    request: Request, stage: Refinement, proposal: Proposal, base: Variant, variant: Variant | None
) -> str:
    if variant is None:
        return f"{stage.label} cannot be planned"
    if variant.missed:
        missed = variant.missed
        return f"{stage.label} cannot be planned: they need {missed.reachable:,} bytes, the budget is {missed.budget:,}"
    reason = proposal.why_not_taken(request, base.plan, variant.plan) if base.planned else ""
    reason = reason or (f"{stage.label} need more memory than the original graph" if variant.is_larger else "")
    faster = base.is_over_time(request) and variant.seconds < base.seconds
    too_slow = variant.is_over_time(request) and not faster
    return reason or (f"{stage.label} take longer than max_time" if too_slow else "")


def plan_variant(request: Request, pipeline: Sequence[Pass], fused: Fused, before: Memory | None = None) -> Variant:
    """Plans a graph, or says which budget it misses; ``before`` is the memory of the original graph if it is known."""
    inner = request
    if fused.match_sites:
        before = before or memory_before(request, fused)
        inner = inside(request, fused, before)
    try:
        return Variant(fused, before, best_plan(inner, pipeline))
    except BudgetError as error:
        return Variant(fused, before, None, error)


def _cost(request: Request, plan: Plan) -> tuple[float, float]:
    """The value to minimize, as in policies: first the bytes, or within a budget first the seconds."""
    cost = (plan.after.chosen, plan.overhead_seconds)
    return cost if request.options.memory_budget is None else cost[::-1]


def best_plan(request: Request, pipeline: Sequence[Pass], known: Iterable[object] = ()) -> PlanResult:
    """Runs the passes, but those whose values are ``known``.

    Raises:
        EchoError: a pass failed.
    """
    spent: dict[str, float] = {}
    values = run(pipeline, [request, *known], request.progress, spent)
    result: Plan = values[Plan]
    rewritten: Rewritten = values[Rewritten]
    selection: Selection = values[Selection]
    graph = request.graph if result.changes_nothing else rewritten.graph
    costs: CostModel = values[CostModel]
    other_seconds = sum(seconds for name, seconds in spent.items() if name not in (EstimateCost.name, Select.name))
    schedule = {} if result.changes_nothing else selection.schedule
    analysis = Analysis(request, values[TrainingGraph], values[Candidates], values[Segments], costs)
    return PlanResult(
        result, graph, request.graph, selection.warm_start, costs.is_timed, other_seconds, schedule, analysis
    )
