"""From a joint graph and a budget to a schedule: which nodes run again in the backward pass, and where.

The search is the one of ``mxecho schedule`` (`echo.policies.data_graph`), with less effort for larger graphs. It does
not start from what torch's own partitioner saves: to find that set takes torch ten times as long, and gains nothing.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

from echo.errors import BudgetError, OptionError, TimeLimitError
from echo.estimators.storage_planner import Evaluation
from echo.ir.schedule import RecomputeSchedule, steps_of
from echo.ir.training_graph import TrainingGraph
from echo.plans.options import budget_bytes
from echo.policies.data_graph import problem_of_graph, solve_graph
from echo.policies.least import Known
from echo.policies.search import Search
from echo.policies.solvers.ruin_recreate import GreedyKeep
from echo.system.process import Deadline
from echo.system.terminal import size_text
from echo.torch.capture import JointGraph
from echo.torch.decisions import replayed
from echo.torch.plan import GraphPlan, described
from echo.torch.planned_graph import planned_graph

# Schedules that earlier searches ended with: a least that an error named is met when it is asked for, and no larger
# budget is kept by a slower schedule than a smaller one was.
KNOWN = Known()
# Simulated nodes of a search, and simulations of a step: twice as many gain nothing on the models of the benchmark (200
# to 3,600 nodes), a tenth loses up to a point of the overhead.
_SIMULATED_NODES, _MOST_SIMULATIONS = 10_000_000, 100_000
_MOST_HELD = 5  # values that an error or a text names


def plan_graph(
    joint: JointGraph,
    seconds: Sequence[float],
    *,
    memory_budget: int | float | str | None = None,
    max_overhead: float | None = None,
    max_time: float | None = None,
    keep: Iterable[str] = (),
    deadline: Deadline,
) -> GraphPlan:
    """The fastest schedule within a budget, or the smallest within a bound on the time of recomputation.

    ``seconds`` are those of each node of ``joint.training``.

    Args:
        memory_budget: bytes, a size such as ``"6GB"``, or a part of the peak without the plan such as ``0.5``.
        max_overhead: the time of recomputation at most, as a part of the step.
        max_time: the time of a step at most, as a multiple of a step without the plan; of two bounds, both hold.
        keep: names of nodes or operators that never run again.

    Raises:
        TimeLimitError: ``max_time`` is below 1.
        BudgetError: no schedule that was found keeps the budget; ``reachable`` bytes were reached.
        OptionError: a limit makes no sense, or there is none.
    """
    training, graph = joint.training, planned_graph(joint, seconds)
    limit = None if memory_budget is None else budget_bytes(memory_budget, training.planned_bytes)
    banned = _banned(joint, frozenset(keep))
    most = _most_seconds(max_overhead, max_time, training, sum(seconds))
    if limit is not None and most is None and limit >= training.planned_bytes:
        return described(graph, {}, Evaluation((training.planned_bytes,), 0.0), limit)
    limits: dict[str, Any] = {"max_bytes": limit, "max_seconds": most, "banned": banned}
    solved = solve_graph(
        Search(), training, seconds, **limits, starts=_starts(training, seconds, limits),
        simulations=min(_MOST_SIMULATIONS, _SIMULATED_NODES // len(training.nodes)), deadline=deadline,
    )  # fmt: skip
    KNOWN.add(training, solved.schedule)
    if limit is not None and solved.planned_bytes > limit:
        raise BudgetError(limit, solved.planned_bytes, held_at_peak(joint, solved.schedule), " by this graph")
    return described(graph, solved.schedule, solved.value, limit)


def _starts(training: TrainingGraph, seconds: Sequence[float], limits: Mapping[str, Any]) -> list[RecomputeSchedule]:
    """The best schedule that an earlier search found for the same graph, and one of light operators alone.

    Without the latter, GPT took 0.2 points more than torch's own plans at some peaks.
    """
    light, heavy = (problem_of_graph(training, seconds, heavy=heavy, **limits) for heavy in (False, True))
    starts = sorted(KNOWN.of(heavy), key=lambda schedule: heavy.rank(heavy.value(schedule)))[:1]
    return starts if light.max_bytes is None else [*starts, GreedyKeep().choose(light)]


def _banned(joint: JointGraph, names: frozenset[str]) -> list[int]:
    """The operators of these names, or of nodes of these names, and what a checkpoint policy says must be saved."""
    return [
        number for number, node in joint.training.operators()
        if names & {node.name, node.op} or str(joint.order[number].meta.get("recompute")).endswith("MUST_SAVE")
    ]  # fmt: skip


def _most_seconds(
    max_overhead: float | None, max_time: float | None, training: TrainingGraph, step: float
) -> float | None:
    """The seconds of recomputation that both bounds allow, None without a bound."""
    if max_overhead is not None and not max_overhead >= 0:
        raise OptionError(f"max_overhead: expected zero or more, got {max_overhead!r}")
    if max_time is not None and not max_time >= 1:
        raise TimeLimitError(max_time, 1.0, training.planned_bytes)
    parts = [max_overhead] if max_overhead is not None else []
    parts += [max_time - 1] if max_time is not None else []
    return min(parts) * step if parts else None


def held_at_peak(joint: JointGraph, schedule: RecomputeSchedule) -> str:
    """The largest values that are alive at the step with the most live bytes, as a text."""
    training = joint.training
    order = [step.node for step in steps_of(training, schedule)]
    alive: set[tuple[int, int]] = {(entry.node, entry.index) for entry in training.outputs}
    most, held = -1, sorted(alive)
    for number in reversed(order):
        alive.update((number, index) for index in range(len(training.nodes[number].outputs)))
        alive.update((entry.node, entry.index) for entry in training.nodes[number].inputs)
        size = sum(training.nodes[node].outputs[index].bytes for node, index in alive)
        if size > most:
            most, held = size, sorted(alive)
        alive.difference_update([one for one in alive if one[0] == number])
    largest = sorted(held, key=lambda one: -training.nodes[one[0]].outputs[one[1]].bytes)[:_MOST_HELD]
    return ", ".join(f"{joint.order[node].name} {size_text(training.nodes[node].outputs[index].bytes)}"
                     for node, index in largest)  # fmt: skip


def is_replayed(plan: GraphPlan) -> bool:
    """Whether a replay of the plan's steps that trusts no planner comes to the same peak."""
    return replayed(plan.graph, plan.schedule).bytes == plan.peak_bytes
