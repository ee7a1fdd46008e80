"""The plan of one compiled graph: what runs again, and what it gains; prints, saves and loads."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Mapping

from echo.errors import BudgetError, GraphError
from echo.estimators.storage_planner import Evaluation
from echo.ir.schedule import RecomputeSchedule, steps_of
from echo.plans.decisions import Decision
from echo.plans.options import budget_bytes
from echo.plans.text import Cost, Why, table_of, why
from echo.system.files import digest_of, read_json, shortened, write_in_one_step
from echo.system.terminal import megabytes, preserve_python_rng, size_text, text_of
from echo.torch.decisions import ScheduleView
from echo.torch.planned_graph import PlannedGraph, check_schedule, read_schedule
from echo.torch.report import PlanReport, held_at_peak

FORMAT = "echo-torch-plan-1"
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError)


@dataclass(frozen=True)
class GraphPlan:
    """What runs again in one compiled graph, and what it gains by the model.

    ``stock_bytes`` and ``peak_bytes`` are the most bytes alive at once without the plan and with it: activations and
    gradients, without parameters and inputs. ``seconds`` is the time of a step without the plan, ``recompute_seconds``
    that of all that runs again with it. ``schedule`` are positions by node number (`echo.ir.schedule`),
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
        """The time that the plan adds to a step, as a part of it; below 0 if torch's own partitioner takes more."""
        return self.graph.overhead(self.recompute_seconds)

    def __str__(self) -> str:
        runs = sum(count for _, count in self.recomputed)
        budget = "no budget" if self.budget_bytes is None else f"budget {size_text(self.budget_bytes)}"
        return (
            f"peak {size_text(self.stock_bytes)} -> {size_text(self.peak_bytes)} ({budget}), "
            f"{len(self.recomputed)} nodes run again in {runs} runs, {100 * self.overhead:+.1f} %"
        )

    @cached_property
    def view(self) -> ScheduleView:
        """The plan's schedule on its graph: decisions, and the costs of others."""
        return ScheduleView(self.graph, self.schedule)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """A decision on each value that the backward pass reads or computes again."""
        return self.view.decisions

    def summary(self) -> str:
        """The plan as tables: what is alive at the peak without it and with it, what runs again, what is saved."""
        return PlanReport(str(self), self.view).text()

    def residuals(self) -> tuple[str, ...]:
        """The values that the forward pass hands to the backward pass, a line each, the largest first.

        The lines are like those of JAX's ``print_saved_residuals``, with bytes instead of shapes.
        """
        return tuple(
            f"{one.bytes:,} bytes, output {one.output} of {one.op} {one.name}"
            f"{f' from {origin}' if (origin := self.graph.origin(one.node)) else ''}: {one.reason}"
            for one in self.view.residuals()
        )

    def why(self, name: str) -> Why:
        """Why a value is saved or recomputed, and what it would cost to change that, by a replay of the schedule.

        Args:
            name: of the node, or ``"name:output"`` where several of its outputs are saved or recomputed.

        Raises:
            OptionError: the backward pass reads no such value; the message names some alike.
        """
        answer = why(name, self.decisions, (), Cost(self.peak_bytes, self.recompute_seconds), self.view.alternative)
        assert isinstance(answer, Why)
        return answer

    def page(self, path: str | os.PathLike[str], title: str = "", frontier: Frontier | None = None) -> None:
        """Writes the plan as one HTML page: memory over the step, the values at the peak, what runs again, decisions.

        Args:
            path: of the file.
            title: the name of the model.
            frontier: plans of other budgets (`echo.torch.frontier`), which the page draws, too.

        Raises:
            UnsupportedError: jinja2 or vl-convert-python is not there.
        """
        rows = () if frontier is None else frontier.to_json()
        write_in_one_step(path, PlanReport(str(self), self.view, rows).html(title))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as a JSON file in one step, with a digest by which `load` refuses a file that was edited."""
        value = self.to_json()
        text = json.dumps({"digest": _digest(value), **value}, separators=(",", ":"), allow_nan=False)
        write_in_one_step(path, f"{text}\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> GraphPlan:
        """Reads a plan that `save` wrote.

        Raises:
            GraphError: the file is not one, or was edited or damaged.
            OSError: it cannot be read, or is no regular file.
        """
        try:
            value = read_json(path)
            digest = value.pop("digest", None) if isinstance(value, dict) else None
            plan = _read(value)
            if digest != _digest(value):
                raise GraphError("it was edited or damaged since it was saved")
            return plan
        except (GraphError, *_UNREADABLE) as error:
            raise GraphError(f"{os.fspath(path)} is not a plan: {_reason(error)}") from error

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
            raise GraphError(f"not a plan: {_reason(error)}") from error


@dataclass(frozen=True)
class Frontier:
    """Plans of one graph, from the smallest to the fastest: each takes less time than all that need less memory.

    It prints as a table, with the graph without echo.
    """

    plans: tuple[GraphPlan, ...]

    def within(self, budget: int | float | str) -> GraphPlan:
        """The fastest plan of at most ``budget``, given as the option ``memory_budget``.

        Raises:
            BudgetError: there is none.
            OptionError: the budget is neither bytes, a size nor a fraction.
        """
        limit = budget_bytes(budget, self.plans[0].stock_bytes)
        for plan in reversed(self.plans):
            if plan.peak_bytes <= limit:
                return plan
        least = self.plans[0]
        held = held_at_peak(least.graph, least.schedule)
        raise BudgetError(limit, least.peak_bytes, held, " by this graph").repeating(budget)

    def to_json(self) -> list[dict[str, Any]]:
        """One object a plan: bytes (``total`` at the peak, ``budget``), ``time`` as a multiple, ``overhead``, runs."""
        return [
            {"budget": plan.budget_bytes or plan.peak_bytes, "total": plan.peak_bytes, "time": 1 + plan.overhead,
             "overhead": plan.overhead, "runs": sum(count for _, count in plan.recomputed)}
            for plan in self.plans
        ]  # fmt: skip

    def __str__(self) -> str:
        with preserve_python_rng():
            table = table_of("budget MB", "peak MB", "time", "runs again")
            for row in self.to_json():
                time = f"{100 * row['overhead']:+.1f} %"
                table.add_row(megabytes(row["budget"]), megabytes(row["total"]), time, str(row["runs"]))
            table.add_row("without echo", megabytes(self.plans[0].stock_bytes), "+0.0 %", "0")
            return text_of([table], 100)


def described(graph: PlannedGraph, schedule: RecomputeSchedule, value: Evaluation, limit: int | None) -> GraphPlan:
    """The plan of a schedule, with the bytes and the seconds of recomputation that a search found for it."""
    runs: dict[str, int] = {}
    for step in steps_of(graph.training, schedule):
        if step.node != step.position:
            name = graph.training.nodes[step.node].name
            runs[name] = runs.get(name, 0) + 1
    stock, seconds = graph.without_echo.bytes, graph.step_seconds
    return GraphPlan(schedule, stock, value.bytes, limit, seconds, value.seconds, tuple(runs.items()), graph)


def on_graph(graph: PlannedGraph, schedule: RecomputeSchedule, limit: int | None) -> GraphPlan:
    """The plan of a schedule that comes from elsewhere: a file, or another process.

    Raises:
        GraphError: the schedule is none of this graph.
    """
    check_schedule(graph.training, schedule)
    value = graph.replayed(schedule)
    return described(graph, schedule, Evaluation((value.bytes,), value.seconds), limit)


def _reason(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def _digest(value: Mapping[str, Any]) -> str:
    """The digest of a plan's values, whatever the layout of the file."""
    return digest_of(FORMAT, json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def _read(value: Any) -> GraphPlan:
    if value["format"] != FORMAT:
        raise GraphError(f"expected format {FORMAT}, got {shortened(repr(value['format']))} of another version of echo")
    graph = PlannedGraph.from_json(value["graph"])
    limit, peak = value["budget_bytes"], value["peak_bytes"]
    if limit is not None and type(limit) is not int:
        raise GraphError(f"budget_bytes: expected bytes or null, got {shortened(repr(limit))}")
    plan = on_graph(graph, read_schedule(graph.training, value["schedule"]), limit)
    if plan.peak_bytes != peak:
        raise GraphError(f"a replay of it comes to {plan.peak_bytes:,} bytes, expected {shortened(repr(peak))}")
    return plan
