"""The choice: which feature maps are recomputed, and under which match range the result is planned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Mapping

from echo.errors import BudgetError, OptionError
from echo.estimators.cost_model import CostModel
from echo.estimators.footprint import footprint, held_at_peak
from echo.estimators.inplace import moved
from echo.estimators.layouts import shape_only_hazard
from echo.estimators.storage_planner import RecomputeMask, blocks
from echo.ir.graph import Entry
from echo.ir.ops import spec
from echo.ir.schedule import RecomputeSchedule, with_clones
from echo.ir.training_graph import Runner, TrainingGraph
from echo.passes.analysis import Candidates
from echo.passes.request import Request, Unreached
from echo.passes.rules import RULES
from echo.plans.options import AUTO, NEVER_HEAVY, SEARCH, budget_bytes
from echo.policies import RecomputeAll, policy_of
from echo.policies.least import fastest, fastest_within
from echo.policies.problem import Problem, Segments, WarmStart, partition, run_with_deadline
from echo.system.process import Deadline
from echo.system.terminal import size_text

# All match ranges that were the best on some model of the benchmarks; 0 (every entry its own chunk) never was.
MATCH_RANGES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


# How often a choice is repeated without nodes whose recomputation moves other operators; then nothing is recomputed.
_MOST_ROUNDS = 8

# With compute-heavy operators there is more to choose from, and more to lose by a bad choice.
_HEAVY_EFFORT = 8


@dataclass(frozen=True)
class Selection:
    """``recompute``: the entries that gradients read from clones; ``schedule``: the backward nodes where clones begin.

    ``declined`` says which recomputation was left out since it saves too little for its time.
    ``runs`` says how often each node is recomputed. ``planned_bytes`` is what MXNet's planner will need under
    ``match_range``, ``seconds`` the time of recomputation in a step. ``warm_start`` makes the next search on a
    graph of the same model short.
    """

    recompute: frozenset[Entry]
    schedule: RecomputeSchedule
    runs: Mapping[int, int]
    match_range: int
    planned_bytes: int
    seconds: float
    warm_start: WarmStart | None = None
    declined: str = ""


@dataclass(frozen=True)
class Select:
    """Runs the policy within the user's limits.

    Compute-heavy operators are offered to meet a budget, and where the request has a plan without them
    (`Request.light`).
    """

    name: ClassVar[str] = "select"
    needs: ClassVar[tuple[type, ...]] = (Request, TrainingGraph, Candidates, Segments, CostModel)
    gives: ClassVar[type] = Selection

    def run(
        self, request: Request, training: TrainingGraph, candidates: Candidates, segments: Segments, costs: CostModel
    ) -> Selection:
        limit, must_recompute, warm = _max_bytes(request, training), candidates.must_recompute, request.warm_start
        light = _problem(request, training, candidates.light, must_recompute, segments, costs, limit)
        follows_heavy = request.follows and warm is not None and warm.heavy
        if limit is None and request.light is None and not follows_heavy:
            selection = _solve(request, light)
            if declined := _why_declined(request, light, selection):
                selection = replace(_selection(light, {}), declined=declined)
            few = warm is not None and _tries_all(training, light.candidates, light.effort)
            return selection if few else _with_warm_start(request, light, selection)
        everything = {**candidates.light, **(candidates.heavy if request.options.heavy != NEVER_HEAVY else {})}
        heavy = _problem(request, training, everything, must_recompute, partition(training, everything), costs, limit)
        if limit is not None:
            heavy = replace(heavy, effort=_HEAVY_EFFORT * heavy.effort)
            return _with_warm_start(request, heavy, _within(request, light, heavy, limit))
        selection = _solve(request, heavy) if request.light is None else _deepened(request, heavy, request.light)
        return _with_warm_start(request, heavy, selection)


def _why_declined(request: Request, problem: Problem, found: Selection) -> str:
    """Why the measured time of a choice is too much for the bytes that it saves of all; empty where it is not."""
    costs, training = problem.costs, problem.training
    cost = found.seconds / costs.step_seconds if costs.step_seconds else 0.0
    if cost <= RULES.cost or not request.weighs_seconds(costs):
        return ""
    copies = sum(runs * training.nodes[number].layout_copy_bytes for number, runs in found.runs.items())
    saved = training.planned_bytes - found.planned_bytes - copies
    part = request.part_of_all_bytes(training, saved)
    text = f"with recomputation it would save {part:.1%} of all bytes for {cost:.1%} of the time"
    return "" if part >= RULES.gain else text


def _deepened(request: Request, problem: Problem, light: RecomputeSchedule) -> Selection:
    """The better of the plan without heavy operators and of one with them."""
    planned = problem.value(light).bytes + sum(request.static.values())
    problem = replace(
        problem,
        light=light,
        price=RULES.heavy * planned / request.original_seconds(problem.costs),
        warm_start=problem.warm_start if problem.warm_start is not None and problem.warm_start.heavy else None,
        effort=_HEAVY_EFFORT * problem.effort,
    )
    found, without = _solve(request, problem), _selection(problem, light)
    is_deeper = problem.is_deeper(problem.value(found.schedule), problem.value(light))
    return found if is_deeper and not _why_declined(request, problem, found) else without


def _within(request: Request, light: Problem, heavy: Problem, limit: int) -> Selection:
    """The fastest choice that keeps the limits, of light operators alone where those do.

    Raises:
        BudgetError: none was found. `Request.unreached` then has the search for the least that can be reached.
    """

    def solve(problem: Problem) -> Selection:
        if problem.candidates is heavy.candidates:
            request.progress("select: the budget needs compute-heavy operators")
        return _solve(request, problem)

    nothing = _selection(heavy, {})  # it keeps a bound on time that the others may not keep
    known = [*(_selection(heavy, schedule) for schedule in request.known.of(heavy)), nothing]
    if request.known_only:
        best = fastest(heavy, known)
        if best.planned_bytes > limit:
            raise _unreachable(request, heavy.training, best, limit)
        return best
    problems = (light,) if request.options.heavy == NEVER_HEAVY else (light, heavy)
    attempt = fastest_within(problems, solve, lambda: nothing)

    def search_least(deadline: Deadline) -> BudgetError:
        best = fastest(heavy, [attempt.least(solve, deadline), *known])
        request.known.add(heavy.training, best.schedule)
        return _unreachable(request, heavy.training, best, limit)

    if attempt.keeps:
        return attempt.solution
    error = _unreachable(request, heavy.training, fastest(heavy, [attempt.solution, nothing]), limit)
    request.unreached.append(Unreached(error.reachable, search_least))
    raise error


def _max_bytes(request: Request, training: TrainingGraph) -> int | None:
    """The budget for planned memory: the user's budget less the static bytes."""
    if request.options.memory_budget is None:
        return None
    static = sum(request.static.values())
    return budget_bytes(request.options.memory_budget, training.planned_bytes + static) - static


def _problem(
    request: Request,
    training: TrainingGraph,
    candidates: Mapping[int, tuple[Entry, ...]],
    must_recompute: frozenset[Entry],
    segments: Segments,
    costs: CostModel,
    max_bytes: int | None,
) -> Problem:
    evaluator, effort = request.framework.evaluator(training, costs.seconds)
    default_range = request.framework.match_range
    frozen = bool(request.memory_frozen_reason)
    other_ranges = () if frozen else tuple(value for value in MATCH_RANGES if value != default_range)
    warm_start = request.warm_start
    few = _tries_all(training, candidates, effort)
    fits = warm_start is not None and (request.follows or (not few and warm_start.fits(training, candidates)))
    assigns = request.framework.hook and training.runner != Runner.DYNAMIC and not frozen
    return Problem(
        training=training,
        costs=costs,
        evaluator=evaluator,
        candidates=candidates,
        segments=segments,
        must_recompute=must_recompute,
        match_ranges=(default_range, *other_ranges),
        max_seconds=request.most_recomputation(costs),
        max_bytes=max_bytes,
        effort=0 if request.follows else int(request.effort * effort),
        warm_start=warm_start if fits else None,
        # a dynamic CachedOp allocates chunks as it runs, and frees each with the arrays in it
        assigns=assigns,
        assigned_only=assigns and bool(shape_only_hazard(request.graph, training, request.framework.device)),
        once=not request.framework.hook,
        deadline=request.deadline.with_room(request.timing),
        progress=lambda text: request.progress(f"select: {text}"),
    )


def _tries_all(training: TrainingGraph, candidates: Mapping[int, tuple[Entry, ...]], effort: int) -> bool:
    """Whether any search tries every choice, whatever it starts from."""
    return len(training.nodes) * (1 + len(MATCH_RANGES)) << min(64, len(candidates)) <= effort


def _solve(request: Request, problem: Problem) -> Selection:
    """The policy's choice, without nodes that would keep operators from working in place as in the original graph."""
    for _ in range(_MOST_ROUNDS):
        selection = _choose(request, problem)
        refused = _moved(request, problem, selection)
        if not refused:
            return selection
        request.progress(f"select: again, without {len(refused)} nodes")
        kept = {number: entries for number, entries in problem.candidates.items() if number not in refused}
        problem = replace(_offering(problem, kept), warm_start=None)
    return _choose(request, _offering(problem, {}))


def _offering(problem: Problem, candidates: Mapping[int, tuple[Entry, ...]]) -> Problem:
    """The problem with fewer candidates, and without the others in the schedule that it starts from."""
    light = problem.light
    if light is not None:
        light = {number: positions for number, positions in light.items() if number in candidates}
    return replace(problem, candidates=candidates, segments=partition(problem.training, candidates), light=light)


def _moved(request: Request, problem: Problem, selection: Selection) -> frozenset[int]:
    if not request.framework.hook:
        return frozenset()
    refused = moved(problem.training, request.framework.device, selection.recompute, selection.schedule)
    must_recompute = sorted(refused & {entry.node for entry in problem.must_recompute})
    if must_recompute:
        node = problem.training.nodes[must_recompute[0]]
        raise OptionError(
            f"recompute: {node.name!r} ({node.op}) cannot be recomputed: an operator next to it would not work in "
            "place as it does in your graph, which may change last bits"
        )
    return refused


def _choose(request: Request, problem: Problem) -> Selection:
    schedule, in_time = run_with_deadline(policy_of(request.options.policy), problem)
    if not in_time:
        request.note_late()
    selection = _selection(problem, schedule)
    _check_bound(request, problem, selection)
    return selection


def _check_bound(request: Request, problem: Problem, selection: Selection) -> None:
    """Checks the bound that the user gave, for policies that do not look at bounds: "all", and the user's own.

    Raises:
        OptionError: the choice takes longer.
    """
    options, most = request.options, problem.max_seconds
    looks = isinstance(options.policy, str) and options.policy != RecomputeAll.name
    if looks or options.max_overhead in (AUTO, None) or most is None:
        return
    if selection.seconds > most and problem.value({}).seconds <= most:
        part = selection.seconds / request.original_seconds(problem.costs)
        raise OptionError(
            f"policy {policy_of(options.policy).name}: expected recomputation of at most "
            f"{options.overhead_bound:.1%} of a step (max_overhead), got {part:.1%}"
        )


def _selection(problem: Problem, schedule: RecomputeSchedule) -> Selection:
    choice, value = problem.choice(list(schedule)), problem.value(schedule)
    executed = problem.evaluator.executed(choice, schedule)
    return Selection(
        recompute=_entries(problem, choice),
        schedule=schedule,
        runs={int(number): int(executed[number]) for number in executed.nonzero()[0]},
        match_range=problem.all_ranges[value.best],
        planned_bytes=value.bytes,
        seconds=value.seconds,
    )


def _with_warm_start(request: Request, problem: Problem, selection: Selection) -> Selection:
    chosen = {entry.node for entry in selection.recompute if entry.node in selection.runs}
    warm_start = WarmStart.of(problem.training, problem.candidates, chosen, selection.schedule)
    heavy = any(spec(problem.training.nodes[node].op).cost.heavy for node in problem.candidates)
    step, is_bound = problem.costs.step_seconds, problem.max_seconds is not None
    ratio = request.original_seconds(problem.costs) / step if step and is_bound else 1.0
    return replace(selection, warm_start=replace(warm_start, heavy=heavy, step_ratio=ratio))


def _entries(problem: Problem, choice: RecomputeMask) -> frozenset[Entry]:
    offered = {entry for entries in problem.candidates.values() for entry in entries} | problem.must_recompute
    return frozenset(entry for entry in offered if choice[problem.training.entry_id(entry)])


def _unreachable(request: Request, training: TrainingGraph, best: Selection, limit: int) -> BudgetError:
    static = sum(request.static.values())
    planned = with_clones(training, best.recompute, best.schedule)
    storage = blocks(planned)
    peak = footprint(planned, storage).peak_node
    largest = [f"{name} {size_text(size)}" for name, size in held_at_peak(planned, storage, peak)]
    kinds = [f"{kind} {size_text(size)}" for kind, size in request.static.items() if size]
    bounds = {"max_overhead": request.options.overhead_bound, "max_time": request.options.max_time}
    condition = "".join(f" within {name}={bound:g}" for name, bound in bounds.items() if bound is not None)
    policy = policy_of(request.options.policy).name
    others = {"heavy": (request.options.heavy, AUTO), "policy": (policy, SEARCH)}
    named = [f"{name}={given!r}" for name, (given, default) in others.items() if given != default]
    condition += f" with {' and '.join(named)}" if named else ""
    if request.is_late:
        condition += f" within max_planning={request.deadline.seconds:g} s"
    return BudgetError(limit + static, best.planned_bytes + static, ", ".join(kinds + largest), condition)
