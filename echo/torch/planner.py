"""From a joint graph and a budget to a schedule: which nodes run again in the backward pass, and where.

The search is the one of ``mxecho schedule`` (`echo.policies.data_graph`), with less effort for larger graphs. It does
not start from what torch's own partitioner saves: to find that set takes torch ten times as long, and gains nothing.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Iterable, Mapping, Sequence

from echo.errors import BudgetError, OptionError, PlanError, TimeLimitError
from echo.estimators.storage_planner import Evaluation
from echo.ir.schedule import RecomputeSchedule, needed, once
from echo.ir.training_graph import TrainingGraph
from echo.plans.frontier import Point, points
from echo.plans.options import budget_bytes
from echo.policies.data_graph import Solved, problem_of_graph, solve_graph
from echo.policies.least import Known
from echo.policies.search import Search
from echo.policies.solvers.ruin_recreate import GreedyKeep
from echo.system.process import Deadline
from echo.system.terminal import counted
from echo.system.threads import ONCE
from echo.torch import snapshots
from echo.torch.capture import JointGraph
from echo.torch.insist import with_runs
from echo.torch.plan import Frontier, GraphPlan, described, on_graph
from echo.torch.planned_graph import PlannedGraph, planned_graph
from echo.torch.report import held_at_peak
from echo.torch.wishes import wishes

logger = logging.getLogger(__name__)
# Budgets aimed at, where copies that the user insists on need more than was counted: up to 2 % on a translation model.
_AIMS, _LOWER = 4, 0.995
# Schedules that earlier searches ended with: a least that an error named is met when it is asked for, and no larger
# budget is kept by a slower schedule than a smaller one was.
KNOWN = Known()
# Simulated nodes of a search, and simulations of a step: twice as many gain nothing on the models of the benchmark (200
# to 3,600 nodes), a tenth loses up to a point of the overhead.
_SIMULATED_NODES, _MOST_SIMULATIONS = 10_000_000, 100_000
_PARTS = 2  # of the time for a search, of which the start by light operators takes one at most


def plan_graph(
    joint: JointGraph,
    seconds: Sequence[float],
    *,
    memory_budget: int | float | str | None = None,
    max_overhead: float | None = None,
    max_time: float | None = None,
    keep: Iterable[str] = (),
    recompute: Iterable[str] = (),
    stock: RecomputeSchedule | None = None,
    strict: bool = False,
    deadline: Deadline,
) -> GraphPlan:
    """The fastest schedule within a budget, or the smallest within a bound on the time of recomputation.

    ``seconds`` are those of each node of ``joint.training``.

    Args:
        memory_budget: bytes, a size such as ``"6GB"``, or a part of the peak without the plan such as ``0.5``.
        max_overhead: the time that recomputation may add, as a part of the step.
        max_time: the time of a step at most, as a multiple of a step without the plan; of two bounds, both hold.
        keep, recompute: names and patterns of nodes or operators that never run again, and of those that do.
        stock: the schedule without echo, {} if torch saves all that the backward pass reads.
        strict: names that match nothing are errors.

    Raises:
        TimeLimitError: ``max_time`` is below 1.
        BudgetError: no schedule that was found keeps the budget; ``reachable`` bytes were reached.
        OptionError: a limit makes no sense, or a node to run again must not.
    """
    kept, insisted = wishes(joint, keep, recompute, strict)
    graph = planned_graph(joint, seconds, kept, insisted, stock)
    limit = None if memory_budget is None else budget_bytes(memory_budget, graph.without_echo.bytes)
    most = _most_seconds(max_overhead, max_time, graph)
    if insisted and limit is None and most is None:
        return on_graph(graph, once(graph.training, insisted), None)
    try:
        return searched(graph, limit, most, deadline)
    except BudgetError as error:
        raise error.repeating(memory_budget) from None


def searched(graph: PlannedGraph, limit: int | None, most_seconds: float | None, deadline: Deadline) -> GraphPlan:
    """The plan of a graph within bytes and seconds of recomputation, which keeps what the graph knows of wishes.

    Raises:
        BudgetError: as `plan_graph`.
    """
    if graph.insisted:
        solved = _insisted(graph, limit, most_seconds, deadline)
    else:
        solved = _with_positions(graph, _uninsisted(graph, limit, most_seconds, deadline), most_seconds)
    if limit is not None and solved.planned_bytes > limit:
        raise BudgetError(limit, solved.planned_bytes, held_at_peak(graph, solved.schedule), " by this graph")
    return described(graph, solved.schedule, solved.value, limit)


def _limits(graph: PlannedGraph, limit: int | None, most_seconds: float | None) -> dict[str, Any]:
    return {"max_bytes": limit, "max_seconds": most_seconds, "banned": list(graph.reasons)}


def _uninsisted(graph: PlannedGraph, limit: int | None, most_seconds: float | None, deadline: Deadline) -> Solved:
    """What torch's own partitioner does, where the budget has room for it; else what a search finds."""
    stock = graph.without_echo
    if limit is not None and most_seconds is None and limit >= stock.bytes and not _breaks_wishes(graph):
        return Solved(graph.stock, Evaluation((stock.bytes,), stock.seconds), False)
    starts = [{number: at for number, at in graph.stock.items() if number not in graph.reasons}]
    return _solved(graph.training, graph.seconds, _limits(graph, limit, most_seconds), deadline, starts)


def _with_positions(graph: PlannedGraph, solved: Solved, most_seconds: float | None) -> Solved:
    """Also runs again what is computed from nothing, such as a mask of positions, in graphs of fused kernels.

    A kernel computes it faster than it reads it: with saved masks, GPT's softmax takes twice as long on a CPU.
    """
    training, made = graph.training, set[int]()
    if not _is_fused(training):
        return solved
    for number, node in training.operators():
        may_run = node.forward and not node.stateful and number not in graph.reasons
        if may_run and all(entry.node in made for entry in node.inputs):
            made.add(number)
    schedule = needed(training, {**once(training, made), **solved.schedule})
    value = graph.replayed(schedule)
    if value.bytes > solved.planned_bytes or (most_seconds is not None and value.seconds > most_seconds):
        return solved
    return Solved(schedule, Evaluation((value.bytes,), value.seconds), solved.heavy)


def _is_fused(training: TrainingGraph) -> bool:
    """Whether a graph has kernels of several operators."""
    nodes = training.nodes
    return any(
        nodes[node.inputs[position].node].op != snapshots.OPERATOR for node in nodes for position in node.in_kernel
    )


def _breaks_wishes(graph: PlannedGraph) -> bool:
    """Whether torch's own partitioner runs again what must not."""
    return not graph.stock.keys().isdisjoint(graph.reasons)


def _solved(
    training: TrainingGraph,
    seconds: Sequence[float],
    limits: Mapping[str, Any],
    deadline: Deadline,
    starts: Sequence[RecomputeSchedule] = (),
) -> Solved:
    solved = solve_graph(
        Search(), training, seconds, **limits,
        starts=[*_starts(training, seconds, limits, deadline.part(_PARTS)), *filter(None, starts)],
        simulations=min(_MOST_SIMULATIONS, _SIMULATED_NODES // len(training.nodes)), deadline=deadline,
    )  # fmt: skip
    KNOWN.add(training, solved.schedule)
    return solved


def _insisted(graph: PlannedGraph, limit: int | None, most_seconds: float | None, deadline: Deadline) -> Solved:
    """The best schedule that runs again what the user insists on.

    On the graph as it is, copies may run in another order than in the one that is searched, and need a little more.
    """
    extended, aim = with_runs(graph), limit
    most = None if most_seconds is None else max(0.0, most_seconds - extended.spent)
    problem = problem_of_graph(graph.training, graph.seconds, max_bytes=limit, max_seconds=most_seconds)
    tried = [schedule for schedule in KNOWN.of(problem) if graph.insisted <= schedule.keys()]
    for _ in range(_AIMS):
        solved = _solved(extended.training, extended.seconds, _limits(graph, aim, most), deadline)
        tried.append(extended.schedule(solved.schedule))
        counted = problem.value(tried[-1]).bytes
        if limit is None or aim is None or counted <= limit or solved.planned_bytes > aim:
            break
        aim = int(_LOWER * aim * limit / counted)
    best = min(tried, key=lambda schedule: problem.rank(problem.value(schedule)))
    KNOWN.add(graph.training, best)
    return Solved(best, problem.value(best), True)


def frontier(plan: GraphPlan, budgets: int = 8, *, max_planning: float = 10.0) -> Frontier:
    """Plans of a plan's graph with other budgets, from the least that can be reached to the memory without echo.

    Nothing is compiled: ``backend(plan=frontier.within(budget))`` uses one of them. ``keep`` and ``recompute`` hold as
    for the plan.

    Args:
        plan: one of ``backend.plans``, or a loaded one.
        budgets: number of memory budgets, 2 to 100.
        max_planning: seconds that the search for each plan may take.

    Raises:
        OptionError: the number of budgets makes no sense.
    """
    found = points(
        lambda budget: searched(plan.graph, budget, None, Deadline.after(max_planning)), budgets,
        lambda one: Point(one.stock_bytes, one.peak_bytes, 1 + one.overhead),
    )  # fmt: skip
    return Frontier(tuple(one for _, one in found))


def reused(plans: Sequence[GraphPlan], joint: JointGraph, seconds: Sequence[float], strict: bool) -> GraphPlan | None:
    """The plan of a joint graph by one of ``plans``, or None, with one warning, if none of them is for it.

    Raises:
        PlanError: with ``strict``, no plan is for this graph.
    """
    graph = planned_graph(joint, seconds)
    for plan in plans:
        if plan.fingerprint == graph.fingerprint:  # and so nodes have the same numbers
            reasons = {**plan.graph.reasons, **graph.reasons}
            known = replace(graph, reasons=reasons, insisted=plan.graph.insisted, stock=plan.graph.stock)
            return on_graph(known, plan.schedule, plan.budget_bytes)
    if plans:
        text = f"plan: none of {counted(len(plans), 'plan')} is for a graph with fingerprint {graph.fingerprint}"
        if strict:
            raise PlanError(text)
        logger.log(logging.WARNING if ONCE.first(text) else logging.DEBUG, "echo: %s; the other options plan it", text)
    return None


def _starts(
    training: TrainingGraph, seconds: Sequence[float], limits: Mapping[str, Any], deadline: Deadline
) -> list[RecomputeSchedule]:
    """The best schedule that an earlier search found for the same graph, and one of light operators alone.

    Without the latter, GPT took 0.2 points more than torch's own plans at some peaks.
    """
    light, heavy = (
        problem_of_graph(training, seconds, heavy=heavy, deadline=deadline, **limits) for heavy in (False, True)
    )
    starts = sorted(KNOWN.of(heavy), key=lambda schedule: heavy.rank(heavy.value(schedule)))[:1]
    return starts if light.max_bytes is None else [*starts, GreedyKeep().choose(light)]


def _most_seconds(max_overhead: float | None, max_time: float | None, graph: PlannedGraph) -> float | None:
    """The seconds of recomputation that both bounds allow, None without a bound."""
    if max_overhead is not None and not max_overhead >= 0:
        raise OptionError(f"max_overhead: expected zero or more, got {max_overhead!r}")
    if max_time is not None and not max_time >= 1:
        raise TimeLimitError(max_time, 1.0, graph.without_echo.bytes)
    parts = [max_overhead] if max_overhead is not None else []
    parts += [max_time - 1] if max_time is not None else []
    return graph.without_echo.seconds + min(parts) * graph.step_seconds if parts else None


def is_replayed(plan: GraphPlan) -> bool:
    """Whether a replay of the plan's steps that trusts no planner comes to the same peak."""
    return plan.graph.replayed(plan.schedule).bytes == plan.peak_bytes
