"""The plan of one compiled graph: what runs again, and what it gains; prints, saves and loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from echo.errors import GraphError
from echo.estimators.storage_planner import Evaluation
from echo.ir.schedule import RecomputeSchedule, Replayed, replay, steps_of
from echo.ir.training_graph import TrainingGraph
from echo.system.files import shortened
from echo.system.terminal import size_text
from echo.torch.planned_graph import PlannedGraph

FORMAT = "echo-torch-plan-1"
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError)


@dataclass(frozen=True)
class GraphPlan:
    """What runs again in one compiled graph, and what it gains by the model.

    ``stock_bytes`` and ``peak_bytes`` are the most bytes alive at once without the plan and with it: activations and
    gradients, without parameters and inputs. ``seconds`` is the time of a step without the plan,
    ``recompute_seconds`` what the plan adds. ``schedule`` are positions by node number (`echo.ir.schedule`),
    ``recomputed`` the names of the nodes that run again, with how often they do. ``graph`` is what the plan keeps of
    the graph.
    """

    schedule: RecomputeSchedule
    stock_bytes: int
    peak_bytes: int
    budget_bytes: int | None
    seconds: float
    recompute_seconds: float
    recomputed: tuple[tuple[str, int], ...]
    graph: PlannedGraph = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """Identifies the graphs that the plan is for (`echo.torch.planned_graph.fingerprint`)."""
        return self.graph.fingerprint

    @property
    def overhead(self) -> float:
        """The recomputation as a part of the step."""
        return self.recompute_seconds / max(self.seconds, 1e-12)

    def __str__(self) -> str:
        runs = sum(count for _, count in self.recomputed)
        budget = "no budget" if self.budget_bytes is None else f"budget {size_text(self.budget_bytes)}"
        return (
            f"peak {size_text(self.stock_bytes)} -> {size_text(self.peak_bytes)} ({budget}), "
            f"{len(self.recomputed)} nodes run again in {runs} runs, {100 * self.overhead:+.1f} %"
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON value: the schedule, the budget, and the graph that it is for."""
        schedule = [[number, list(positions)] for number, positions in sorted(self.schedule.items())]
        return {
            "format": FORMAT, "schedule": schedule, "budget_bytes": self.budget_bytes, "peak_bytes": self.peak_bytes,
            "graph": self.graph.to_json(),
        }  # fmt: skip

    @staticmethod
    def from_json(value: Any) -> GraphPlan:
        """Reads what `to_json` wrote; bytes and seconds come from a replay of the schedule.

        Raises:
            GraphError: not a plan, or one whose parts do not fit together.
        """
        try:
            return _read(value)
        except _UNREADABLE as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise GraphError(f"not a plan: {reason}") from error


def described(graph: PlannedGraph, schedule: RecomputeSchedule, value: Evaluation, limit: int | None) -> GraphPlan:
    """The plan of a schedule, with the bytes and the seconds of recomputation that a search found for it."""
    runs: dict[str, int] = {}
    for step in steps_of(graph.training, schedule):
        if step.node != step.position:
            name = graph.training.nodes[step.node].name
            runs[name] = runs.get(name, 0) + 1
    stock = graph.training.planned_bytes
    return GraphPlan(schedule, stock, value.bytes, limit, sum(graph.seconds), value.seconds, tuple(runs.items()), graph)


def replayed(graph: PlannedGraph, schedule: RecomputeSchedule) -> Replayed:
    """The peak of a schedule and its seconds of recomputation, by a replay that trusts no planner."""
    steps = steps_of(graph.training, schedule)
    bytes_ = replay(graph.training, [step.node for step in steps], graph.seconds).bytes
    return Replayed(bytes_, sum(graph.seconds[step.node] for step in steps if step.node != step.position))


def on_graph(graph: PlannedGraph, schedule: RecomputeSchedule, limit: int | None) -> GraphPlan:
    """The plan of a schedule that comes from elsewhere: a file, or another process.

    Raises:
        GraphError: the schedule is none of this graph.
    """
    check_schedule(graph.training, schedule)
    value = replayed(graph, schedule)
    return described(graph, schedule, Evaluation((value.bytes,), value.seconds), limit)


def check_schedule(training: TrainingGraph, schedule: Mapping[int, Any]) -> None:
    """Checks that forward nodes which may run again do so at ascending backward positions.

    Raises:
        GraphError: one does not; the message names it.
    """
    for number, positions in schedule.items():
        if not 0 <= number < len(training.nodes):
            raise GraphError(f"schedule: there is no node {number}")
        node = training.nodes[number]
        if node.is_variable or not node.forward or node.stateful:
            raise GraphError(f"schedule: {node.name!r} must not run again")
        backward = [at for at in positions if 0 <= at < len(training.nodes) and not training.nodes[at].forward]
        if not backward or backward != sorted(set(positions)) or backward != list(positions):
            raise GraphError(f"schedule: {node.name!r}: expected ascending positions of backward nodes")


def _read(value: Any) -> GraphPlan:
    if value["format"] != FORMAT:
        raise GraphError(f"expected format {FORMAT}, got {shortened(repr(value['format']))} of another version of echo")
    graph = PlannedGraph.from_json(value["graph"])
    limit, peak = value["budget_bytes"], value["peak_bytes"]
    if limit is not None and type(limit) is not int:
        raise GraphError(f"budget_bytes: expected bytes or null, got {shortened(repr(limit))}")
    schedule = {number: tuple(positions) for number, positions in value["schedule"]}
    if not all(type(one) is int for number, positions in schedule.items() for one in (number, *positions)):
        raise GraphError("schedule: expected whole numbers")
    plan = on_graph(graph, schedule, limit)
    if plan.peak_bytes != peak:
        raise GraphError(f"a replay of it comes to {plan.peak_bytes:,} bytes, expected {shortened(repr(peak))}")
    return plan
