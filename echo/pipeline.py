"""The pipeline, in the order in which a graph goes through it. Read this file first.

The frontend turns a symbol and its shapes into a `Graph`; each pass below takes values and gives one; at bind the
runtime binds the rewritten graph, and the native hook applies the plan in MXNet's own gradient pass.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Iterator, NamedTuple

from echo.errors import BudgetError, OptionError
from echo.estimators.inplace import why_as_it_is
from echo.ir.graph import Graph
from echo.passes.base import Pass, run
from echo.passes.candidates import FindCandidates
from echo.passes.confirm import Confirm
from echo.passes.differentiate import Differentiate
from echo.passes.estimate import EstimateOverhead
from echo.passes.explain import Explain
from echo.passes.fuse import Fuse, explained, inside, stock
from echo.passes.layouts import Batched, BatchProducts, accepted
from echo.passes.masks import Masked, PackMasks, why_no_bits, why_not_tried
from echo.passes.partition import Partition
from echo.passes.patterns.apply import Fused
from echo.passes.request import Request
from echo.passes.rewrite import Rewrite, Rewritten
from echo.passes.select import Select, Selection
from echo.passes.trace import trace
from echo.plans.decisions import Memory
from echo.plans.plan import Plan
from echo.policies.warm_start import WarmStart

FUSE = Fuse()  #              Graph -> Fused: kernels of our own in the place of layers, cells and attention scores
CELLS = Fuse(layers=False)  # the same without whole layers, tried too where those save less than half
MASK = PackMasks()  #         Fused -> Masked: masks of Dropout and ReLU as bits, where that lowers what is planned
HOIST = BatchProducts()  #    Fused -> Batched: products with one weight in the layout that is fastest on this device
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

_ENOUGH = 0.5  # of the user's planned bytes: fused operators that need no more are taken without a look at other plans
_MUCH = 1.25  # times the bytes of the best plan that one with more fused operators, which is faster, may need


class Planned(NamedTuple):
    """The plan, the graph to bind (the user's own where nothing is gained), and a hint for graphs of the same model.

    ``base`` is the user's graph with the plan's fused operators, without its marks.
    """

    plan: Plan
    graph: Graph
    base: Graph
    hint: WarmStart | None


def plan(request: Request) -> Planned:
    """Fuses operators, and runs the pipeline on what comes out, or on the user's graph where that needs less.

    Raises:
        EchoError: the options, the graph or the budget cannot be met; the message says what was expected.
    """
    if why_as_it_is(request.graph, request.frontend.device):
        request = replace(request, options=replace(request.options, fuse=False))
    found, fused, before = _masked(request)
    layouts = Batched(fused)
    if request.is_late:
        request.note_late()
        return _finished(request, found, fused, before)
    with request.without("layouts of products"):
        layouts = run((HOIST,), [request, fused], request.progress)[Batched]
    if layouts.fused is None:
        return _finished(request, found, layouts.stays, before)
    with contextlib.suppress(BudgetError), request.without("layouts of products"):
        user = before or stock(request, fused)
        other = _best(inside(request, layouts.fused, user))
        if accepted(request, layouts, found.plan, other.plan):
            return _finished(request, other, layouts.fused, user)
    return _finished(request, found, layouts.declined(), before)


def _finished(request: Request, found: Planned, fused: Fused, before: Memory | None) -> Planned:
    plan = replace(explained(found.plan, fused, before), failed=tuple(request.failed))
    if (tracing := trace()) is not None:
        tracing.note("plan", "\n".join([plan.summary(), *plan.remarks]))
    return found._replace(plan=plan)


def _masked(request: Request) -> tuple[Planned, Fused, Memory | None]:
    """The plan with masks as bits, where that lowers what is planned or keeps a budget; and the user's memory."""
    try:
        found, fused, before, *_ = _fused(request)
    except BudgetError as error:
        return _within_budget(request, error)
    if request.is_late:
        return found, fused, before
    masked = Masked(fused)
    with request.without("masks as bits"):
        masked = run((MASK,), [request, fused], request.progress)[Masked]
    reason = why_not_tried(request, masked, found.plan)
    if masked.fused is None or reason:
        return found, masked.declined(request, reason), before
    reason = "masks as bits cannot be planned"
    try:
        with request.without("masks as bits"):
            user = before or stock(request, masked.fused)
            other = _best(inside(request, masked.fused, user))
            reason = why_no_bits(request, found.plan, other.plan)
            if not reason:
                return other, masked.fused, user
    except BudgetError as error:
        reason = f"masks as bits cannot be planned: {error}"
    return found, masked.declined(request, reason), before


def _within_budget(request: Request, missed: BudgetError) -> tuple[Planned, Fused, Memory]:
    """The plan with masks as bits within a budget that is not kept without; ``missed`` where that does not help."""
    if request.is_late:
        raise missed
    with request.without("masks as bits"):
        fused: Fused = run((FUSE,), [request], request.progress)[Fused]
        masked = run((MASK,), [request, fused], request.progress)[Masked].fused
        if masked is not None:
            user = stock(request, masked)
            try:
                return _best(inside(request, masked, user)), masked, user
            except BudgetError as error:
                raise min((error, missed), key=lambda each: each.reachable) from None
    raise missed


class _Tried(NamedTuple):
    found: Planned
    fused: Fused
    before: Memory | None  # the user's, where there are fused operators
    bytes: int
    enough: bool  # nothing else has to be tried


def _fused(request: Request) -> _Tried:
    """The plan with the most fused operators, unless another needs much less."""
    tried: list[_Tried] = []
    for each in _tries(request):
        tried.append(each)
        if each.enough or request.is_late:
            break
    least = min(each.bytes for each in tried)
    chosen = next(each for each in tried if each.bytes <= _MUCH * least)
    if (tracing := trace()) is not None:
        tracing.note("chosen", "\n".join(_told(each, each is chosen, least) for each in tried))
    return chosen


def _told(tried: _Tried, is_chosen: bool, least: int) -> str:
    what = f"{len(tried.fused.places)} fused operators" if tried.fused.places else "the user's operators"
    why = ": the most fused operators" if is_chosen else "" if tried.bytes <= _MUCH * least else ": too much memory"
    head = f"{'taken' if is_chosen else 'left'}: {what}"
    return f"{head}, {tried.bytes} bytes, {tried.bytes / least:.2f} of the least{why}"


def _tries(request: Request) -> Iterator[_Tried]:
    """Plans that need no more than the user's graph: with fused layers, with fused cells alone, and as the user's.

    What fails costs that plan alone.
    """
    missed, found = None, False
    fused, hidden, seen = Fused(request.graph), 0, None
    for stage in (FUSE, CELLS):
        tried = None
        try:
            with request.without(stage.what):
                fused = run((stage,), [request], request.progress)[Fused]
                if not fused.places or fused.places == seen:
                    break
                seen, hidden = fused.places, max(hidden, fused.hidden)
                tried = _tried(request, fused, hidden)
        except BudgetError as error:
            missed = error
        if tried is not None:
            found = True
            yield tried
    with request.without("a look at the user's own operators") if found else contextlib.nullcontext():
        try:
            plain = _best(request)
        except BudgetError as error:
            raise error if missed is None or error.reachable < missed.reachable else missed from None
        except OptionError:
            if found:
                return  # what the user insists on can be had with fused operators alone
            raise
        unfused = replace(fused, graph=request.graph, places=(), what={}, hidden=0)
        yield _Tried(plain, unfused, None, plain.plan.after.total + hidden, True)


def _tried(request: Request, fused: Fused, hidden: int) -> _Tried | None:
    """The plan of the graph with fused operators; None where it needs more than the user's graph."""
    before = stock(request, fused)
    found = _best(inside(request, fused, before))
    after = found.plan.after
    enough = request.options.memory_budget is not None or after.chosen <= _ENOUGH * before.planned
    total = after.total + hidden - fused.hidden
    return _Tried(found, fused, before, total, enough) if after.total <= before.total else None


def _best(request: Request) -> Planned:
    """Where other bits are allowed, the better of two plans: one that has them, and one that has not."""
    if request.options.exact:
        return _plan(request)
    found = _plan(request)
    if found.plan.exact:
        return found
    with contextlib.suppress(BudgetError):
        exact = _plan(replace(request, options=replace(request.options, exact=True)))
        return min(exact, found, key=lambda planned: _worth(request, planned.plan))
    return found


def _worth(request: Request, plan: Plan) -> tuple[float, float]:
    """Smaller is better, as for policies: the bytes, or within a budget the seconds."""
    worth = (plan.after.chosen, plan.overhead_seconds)
    return worth if request.options.memory_budget is None else worth[::-1]


def _plan(request: Request) -> Planned:
    values = run(PIPELINE, [request], request.progress)
    result: Plan = values[Plan]
    rewritten: Rewritten = values[Rewritten]
    selection: Selection = values[Selection]
    graph = request.graph if result.changes_nothing else rewritten.graph
    return Planned(result, graph, request.graph, selection.hint)
