"""Graphs to choose between: each with the plan that was made for it, or with the budget that it misses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterator, NamedTuple, Sequence

from echo.errors import BudgetError, GraphError, TimeLimitError
from echo.estimators.cost_model import CostModel
from echo.ir.graph import Graph
from echo.ir.ops import spec
from echo.ir.schedule import RecomputeSchedule
from echo.ir.training_graph import TrainingGraph
from echo.passes.analysis import Candidates, EstimateCost
from echo.passes.fuse import CountWorkspaces, Workspaces
from echo.passes.pass_manager import run, stage_dump
from echo.passes.patterns import MASKS
from echo.passes.patterns.apply import Fused, MatchSite, missed_fusion
from echo.passes.request import Request
from echo.passes.rewrite import OPEN, memory
from echo.passes.rules import RULES
from echo.plans.decisions import HIDDEN, Mark, Memory, MissedFusion, Note, outputs_of, splits_of
from echo.plans.options import NEVER_HEAVY, SEARCH, budget_bytes
from echo.plans.plan import Plan
from echo.policies.problem import Segments, WarmStart
from echo.system.terminal import counted, size_text


class Analysis(NamedTuple):
    """The request for the plan of one graph, and the values of all stages before `echo.passes.select.Select`."""

    request: Request
    training: TrainingGraph
    candidates: Candidates
    segments: Segments
    costs: CostModel


class PlanResult(NamedTuple):
    """What planning a graph gives: the plan, the graph to bind, and the warm start for equal models.

    The graph is the original one if nothing is gained; ``base`` is that with the plan's fused operators, without marks.
    ``timed``: seconds are measured. Without measuring and the search, planning took ``other_seconds``. ``schedule`` is
    the schedule, empty if nothing is recomputed. ``analysis`` is there until the plan is finished.
    """

    plan: Plan
    graph: Graph
    base: Graph
    warm_start: WarmStart | None
    timed: bool = False
    other_seconds: float = 0.0
    schedule: RecomputeSchedule = {}  # noqa: RUF012 - nothing writes to it
    analysis: Analysis | None = None


_DEEPEN = (SEARCH, "ilp")  # policies to which compute-heavy operators are offered without a budget
_ROUNDED = 1 + 1e-9  # times a bound that a time keeps


@dataclass(frozen=True)
class Variant:
    """One graph for the user's model, with its plan; exactly one of ``planned`` and ``missed`` is there.

    ``before`` is the memory of the original graph, None where nothing is fused: then the plan has it.
    """

    fused: Fused
    before: Memory | None
    planned: PlanResult | None
    missed: BudgetError | None = None

    @property
    def plan(self) -> Plan:
        """The plan.

        Raises:
            BudgetError: there is none.
        """
        if self.planned is None:
            assert self.missed is not None
            raise self.missed
        return self.planned.plan

    @property
    def is_larger(self) -> bool:
        """Whether the plan needs more bytes than the original graph."""
        return self.planned is not None and self.before is not None and self._total > self.before.total

    @property
    def _total(self) -> int:
        """All bytes that the plan's graph holds, without workspaces as small as those of MXNet's own operators."""
        after, before = self.plan.after, self.before
        tiny = before is not None and before.planned + self.fused.hidden < RULES.tiny
        return after.total - (min(after.workspaces, RULES.tiny) if tiny else 0)

    def why_slower(self, request: Request) -> str:
        """Returns why the graph is not taken because of its measured time, or "" if it is fast enough or not measured.

        It may take longer than the original graph by the bound ``max_overhead``, if it saves `RULES.gain` of the
        bytes; otherwise, or by the default bound where steps are short, it has to be faster by `RULES.sure`. Whoever
        asks for a budget or for memory first, or has no bound, gets the graph whatever it takes.
        """
        options, bound = request.options, request.options.overhead_bound
        if (options.asks_for_memory and options.max_time is None) or self.before is None or not self.is_timed:
            return ""
        part = self.time(request)
        if part is None:
            return ""
        saved = 1 - self._total / max(1, self.before.total)
        limit = 1 + (bound or 0.0)
        if options.max_time is not None:
            limit = _ROUNDED * options.max_time
        elif saved < RULES.gain or (options.max_overhead == "auto" and self.seconds < RULES.step):
            limit = 1 - RULES.sure
            part += RULES.launch * part / self.seconds
        return f"would take {part:.2f} of the time of a step" if part > limit else ""

    def time(self, request: Request) -> float | None:
        """The predicted time of a step as a multiple of the original one, None where it is not known."""
        if self.planned is None or not self.is_timed:
            return None
        original = self.plan.step_seconds if self.before is None else request.stock_seconds()
        return self.seconds / original if original else None

    def is_over_time(self, request: Request) -> bool:
        """Whether a step takes longer than ``max_time``, as far as that is known."""
        limit, time = request.options.max_time, self.time(request)
        return limit is not None and time is not None and time > _ROUNDED * limit

    def check_time(self, request: Request) -> None:
        """Checks the bound on the time of a step, of which a note says that it is none where seconds are not known.

        Raises:
            TimeLimitError: this variant takes longer, as do all others, of which it is the fastest.
        """
        limit, time = request.options.max_time, self.time(request)
        if limit is None or self.planned is None:
            return
        if time is None and request.warm_start is not None:
            return  # it follows a plan for other shapes, of which this was said
        if time is None:
            instead = ", the default max_overhead is" if request.options.is_bounded_by_time else ""
            text = f"the seconds of a step could not be measured: max_time is no bound here{instead}"
            request.notes.append(Note(text))
        elif self.is_over_time(request):
            raise TimeLimitError(limit, time, self.plan.after.total)

    def why_light(self, request: Request) -> str:
        """Returns why no compute-heavy operator may run twice in this graph, or "" if one may.

        Their seconds have to be known, and steps long enough for that. Further shapes of a model, for which nothing is
        measured, do as the first ones. A GPU has not shown yet that a copy has equal bits where cuDNN may choose
        another algorithm for it.
        """
        return next(self._reasons_to_stay_light(request), "")

    def _reasons_to_stay_light(self, request: Request) -> Iterator[str]:
        options, framework, warm = request.options, request.framework, request.warm_start
        if options.heavy == NEVER_HEAVY or options.memory_budget is not None or request.follows:
            yield OPEN  # not asked
        if options.policy not in _DEEPEN:
            yield "this policy runs none twice without a budget"
        if request.memory_frozen_reason or not framework.hook:
            yield "only the native hook can run it twice, where the memory of a graph may change"
        if not self.is_timed and not (warm is not None and warm.heavy):
            yield "none runs twice where seconds are not measured"
        if options.overhead_bound is None and options.max_time is None:
            yield "none runs twice without a bound on time"
        if self.plan.step_seconds < RULES.step:
            yield "none runs twice in so short a step"
        if not any(spec(node.op).cost.heavy for node in self.fused.graph.nodes if not node.is_variable):
            yield OPEN  # there is none
        if not framework.repeats_bits:
            yield "on this device, a copy may have other bits"

    def with_reason(self, why: str) -> Variant:
        """This variant, with the reason why its compute-heavy operators stay stashed."""
        assert self.planned is not None
        decisions = tuple(
            replace(each, reason=each.reason.replace(OPEN, why)) if OPEN in each.reason else each
            for each in self.plan.decisions
        )
        return replace(self, planned=self.planned._replace(plan=replace(self.plan, decisions=decisions)))

    def deeper_than(self, light: Variant) -> Variant:
        """This variant with a note on what its compute-heavy operators save and take, other than the ``light`` one."""
        saved = light.plan.after.total - self.plan.after.total
        seconds = self.plan.overhead_seconds - light.plan.overhead_seconds
        insisted = {mark.node for mark in _heavy(light.plan)}
        marks = [mark for mark in _heavy(self.plan) if mark.node not in insisted]
        runs = sum(max(1, len(splits_of(mark))) for mark in marks)
        text = (
            f"{counted(len(marks), 'compute-heavy operator')} recomputed, in {counted(runs, 'run')}, which saves "
            f"{size_text(saved)} more for {1e3 * seconds:.3g} ms a step (heavy='never' avoids it)"
        )
        assert self.planned is not None
        plan = replace(self.plan, notes=(*self.plan.notes, Note(text)))
        return replace(self, planned=self.planned._replace(plan=plan))

    def is_enough(self, request: Request) -> bool:
        """Whether no other graph has to be planned: this one keeps the budget, or needs little enough."""
        if self.planned is None or self.before is None:
            return False
        after = self.plan.after
        others = after.total - after.workspaces - (1 - RULES.other) * after.chosen
        few = after.chosen <= RULES.enough * self.before.planned and self._total <= RULES.slack * others
        return request.options.memory_budget is not None or few

    def bytes(self, hidden: int) -> int:
        """The bytes of the graph, comparable with those of others.

        ``hidden`` is the most that operators of any of the graphs hold beyond planned memory.
        """
        return self._total + hidden - self.fused.hidden

    @property
    def seconds(self) -> float:
        """The predicted seconds of a step of the graph."""
        return self.plan.step_seconds + self.plan.overhead_seconds

    @property
    def is_timed(self) -> bool:
        """Whether its operators were measured."""
        return self.planned is not None and self.planned.timed

    def _with_rejected(self, fused: Fused, reason: str, original: Graph) -> Variant:
        """This variant, with those operators of another one as near-misses which it does not have."""
        left = [site for site in fused.match_sites if site not in self.fused.match_sites]
        missed = (missed_fusion(original, site, reason) for site in left)
        return replace(self, fused=replace(self.fused, missed=(*self.fused.missed, *missed)))

    def near_misses(self, original: Graph, slower: str = "") -> dict[MatchSite, MissedFusion]:
        """Its fused operators as near-misses: together they are ``slower`` or larger than the original graph."""
        assert self.before is not None
        larger = f"needs {self._total:,} bytes, the original graph {self.before.total:,}"
        reason = f"the graph with all fused operators {slower or larger}"
        return {site: missed_fusion(original, site, reason) for site in self.fused.match_sites}

    def warmed(self, request: Request) -> Request | None:
        """Returns the request by which a refined graph is planned from the choice of this plan, in the time left.

        None where there is time for a search, no time for anything, or a budget, which such a plan may miss.
        """
        planned, deadline = self.planned, request.deadline
        if planned is None or planned.warm_start is None or request.options.memory_budget is not None:
            return None
        if not request.is_late or deadline.left < planned.other_seconds:
            return None
        return replace(request, warm_start=replace(planned.warm_start, is_known=True), deadline=deadline.rest())

    def without_refinement(self, fused: Fused, missed: BudgetError | None = None) -> Variant:
        """This variant, where a refinement was rejected; ``missed`` is the error of the refined one, if it had one."""
        least = _least(self.missed, missed) if self.missed else None
        return replace(self, fused=fused, missed=least)

    def result(self, request: Request) -> PlanResult:
        """The plan as one of the original graph, with all remarks on it.

        Raises:
            BudgetError: there is none.
        """
        plan = _explained(self.plan, self.fused, self.before, self._stock_seconds(request))
        plan = replace(plan, notes=(*plan.notes, *request.notes))
        if (dump := stage_dump()) is not None:
            dump.note("plan", "\n".join([plan.summary(), *plan.remarks]))
        assert self.planned is not None
        return self.planned._replace(plan=plan, analysis=None)

    def _stock_seconds(self, request: Request) -> float | None:
        """The seconds of a step of the original graph; of further shapes of a model, by the ratio of the first one."""
        if self.before is None:
            return None
        if self.is_timed:
            return request.stock_seconds()
        ratio = 1.0 if request.warm_start is None else request.warm_start.step_ratio
        return None if ratio == 1.0 else ratio * self.plan.step_seconds


def choose(variants: Sequence[Variant], original: Graph) -> Variant:
    """The first variant that is worth its bytes (`_why_rejected`); the first ones have the most fused operators.

    Fused operators that are left are near-misses of it, at nodes of the ``original`` graph. If none has a plan, the
    first variant, with the error of the one that misses the budget by the least.
    """
    planned = [variant for variant in variants if variant.planned is not None]
    if not planned:
        return replace(variants[0], missed=_least(*(variant.missed for variant in variants)))
    hidden = max(variant.fused.hidden for variant in planned)
    timed = all(variant.is_timed and variant.seconds >= RULES.step for variant in planned)
    least = min(planned, key=lambda variant: (variant.bytes(hidden), variant.seconds if timed else 0.0))
    reasons = ["" if variant is least else _why_rejected(variant, least, hidden, timed) for variant in planned]
    chosen = planned[reasons.index("")]
    if (dump := stage_dump()) is not None:
        texts = (_verdict(variant, variant is chosen, reason) for variant, reason in zip(planned, reasons))
        dump.note("chosen", "\n".join(texts))
    return chosen._with_rejected(planned[0].fused, reasons[0], original) if reasons[0] else chosen


def _heavy(plan: Plan) -> list[Mark]:
    """The marks of compute-heavy operators that run twice: in a light plan, those that the user insists on."""
    return [mark for mark in plan.marks if outputs_of(mark) and spec(mark.op).cost.heavy]


def _why_rejected(variant: Variant, least: Variant, hidden: int, timed: bool) -> str:
    """Why a graph with more fused operators is left for the one of the fewest bytes, empty where it is not.

    It may need `RULES.slack` times the bytes if it is much faster, `RULES.more` times if it is faster at all. It need
    not be as much faster where it plans no more bytes, and is larger by what its operators draw while they run.
    """
    part = variant.bytes(hidden) / max(1, least.bytes(hidden))
    plans_more = variant.plan.after.chosen > least.plan.after.chosen
    limit = 1.0 if part <= RULES.more else RULES.faster if plans_more else RULES.drawing
    if part <= RULES.slack and (not timed or variant.seconds <= limit * least.seconds):
        return ""
    times = f", and {variant.seconds / least.seconds:.2f} of the time" if timed and least.seconds else ""
    return f"{part:.2f} times the memory of the plan without it{times}"


def _least(*errors: BudgetError | None) -> BudgetError:
    return min((error for error in errors if error is not None), key=lambda error: error.reachable)


def _verdict(variant: Variant, is_chosen: bool, reason: str) -> str:
    operators = (
        f"{len(variant.fused.match_sites)} fused operators" if variant.fused.match_sites else "the user's operators"
    )
    numbers = f"{variant._total} bytes, {1e3 * variant.seconds:.3g} ms"
    return f"{'taken' if is_chosen else 'rejected'}: {operators}, {numbers}{': ' if reason else ''}{reason}"


def inside(request: Request, fused: Fused, before: Memory) -> Request:
    """The request for the graph with fused operators; ``before`` is the memory of the user's own.

    A budget that is a fraction means a fraction of what the original graph holds.

    Raises:
        GraphError: MXNet finds other arguments in it than in the original graph, or in another order.
    """
    options, framework = request.options, request.framework.on(fused.graph)
    expected, got = list(request.framework.argument_names()), list(framework.argument_names())
    if got != expected or len(fused.graph.heads) != len(request.graph.heads):
        raise GraphError(f"fused operators would change the arguments: expected {expected}, got {got}")
    if options.memory_budget is not None:
        options = replace(options, memory_budget=budget_bytes(options.memory_budget, before.total))
    request = replace(request, graph=fused.graph, framework=framework, options=options, fused=True)
    drawn: Workspaces = run((CountWorkspaces(),), [request], request.progress)[Workspaces]
    return replace(request, workspaces=drawn.bytes)


def memory_before(request: Request, fused: Fused) -> Memory:
    """The memory of the original graph, with the bytes that its operators hold beyond planned memory."""
    framework = request.framework
    if request.details:
        training = framework.differentiate()
        before = memory(request, training, training.planned_bytes)
    else:
        before = Memory(framework.original_bytes(), 0, request.static, {}, {})
    return replace(before, static={**before.static, HIDDEN: fused.hidden}) if fused.hidden else before


def stock_seconds(request: Request) -> float | None:
    """The predicted seconds of a step of the original graph, of which operators are measured that are not known yet.

    None where too little of it could be measured, or that would be dear: of all buckets of a model whose plans nothing
    reads, only the first is looked at.
    """
    if not request.details and request.warm_start is not None:
        return None
    with request.fallback_scope("a look at the time of the original graph"):
        costs = EstimateCost().run(request, request.framework.differentiate())
        return costs.step_seconds if costs.is_timed else None
    return None


def _explained(plan: Plan, fused: Fused, before: Memory | None, seconds: float | None) -> Plan:
    """A plan of a graph with fused operators, as one of the original graph; ``before`` is None where none is fused."""
    plan = replace(plan, missed=fused.missed, notes=(*plan.notes, *_notes(fused, before is not None)))
    if before is None:
        return plan
    return replace(plan, before=before, applied="hook", fused=fused.match_sites, stock_seconds=seconds)


def _notes(fused: Fused, applied: bool) -> Iterator[Note]:
    yield from fused.notes
    if applied:
        operators = ", ".join(f"{count} x {label}" for label, count in sorted(fused.counts.items()))
        same = all(name in MASKS for name, _ in fused.match_sites)
        bits = "every bit stays" if same else "last bits differ from the original graph (exact=True keeps them)"
        yield Note(f"fused: {operators}; {bits}")
