"""A plan as a text and as a page: memory over the step, values at the peak, what runs again, and what is saved."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

import torch

from echo.estimators.footprint import FEATURE_MAPS, GRADIENTS, OUTPUT_GRADIENTS, RECOMPUTED, TEMPORARIES
from echo.ir.graph import Entry
from echo.ir.schedule import RecomputeSchedule, last_uses, values_in_kernels
from echo.plans.text import largest_rows, table_of
from echo.report.charts import by_kind, frontier, timeline
from echo.report.usage import PLANNED, STOCK, Tensor, Usage
from echo.system.terminal import MB, megabytes, preserve_python_rng, size_text, text_of
from echo.torch.decisions import ScheduleView
from echo.torch.planned_graph import PlannedGraph

if TYPE_CHECKING:
    from rich.table import Table

_WIDTH = 120
_MOST_ROWS = 8
_MOST_HELD = 5  # values that an error names
_SMALL = 10 * MB  # the peak of a graph whose MB have three digits after the point
_MOST_LISTED, _MOST_VALUES = 2000, 200  # rows of tables of the page
_TEMPLATE = Path(__file__).with_name("page.html.jinja")
_OUTERMOST = "the model"  # the layer of values without a module


def usage_of(view: ScheduleView) -> Usage:
    """The memory of a step: each value with its bytes, and from which step to which it is alive."""
    training = view.graph.training
    order = [step.node for step in view.steps]
    nowhere = values_in_kernels(training, order)
    uses, gradients = last_uses(training, order), {Entry(*entry[:2]) for entry in training.outputs}
    tensors = []
    for step, number in enumerate(order):
        node, again = training.nodes[number], view.steps[step].position != number
        for index, tensor in enumerate(node.outputs):
            last = min(uses.get((step, index), step), len(order) - 1)
            if tensor.bytes and (step, index) not in nowhere:
                kind = _kind(view, step, last, again, Entry(number, index) in gradients)
                layer = view.graph.modules.get(number, "") or _OUTERMOST
                tensors.append(Tensor(node.name, node.op, layer, kind, tensor.bytes, step, last))
    names = tuple(training.nodes[number].name for number in order)
    usage = Usage(0, {}, names, view.forward_steps, tuple(tensors))
    return Usage(usage.live_peak, {}, names, view.forward_steps, tuple(tensors))


def _kind(view: ScheduleView, step: int, last: int, again: bool, is_output: bool) -> str:
    if again:
        return RECOMPUTED
    if step < view.forward_steps:
        return FEATURE_MAPS if last >= view.forward_steps else TEMPORARIES
    return GRADIENTS if is_output else OUTPUT_GRADIENTS


def held_at_peak(graph: PlannedGraph, schedule: RecomputeSchedule) -> str:
    """The largest values that are alive at the step with the most live bytes, as a text."""
    largest = usage_of(ScheduleView(graph, schedule)).at_peak[:_MOST_HELD]
    return ", ".join(f"{tensor.name} {size_text(tensor.bytes)}" for tensor in largest)


class Again(NamedTuple):
    """Nodes of one operator and size that run again: ``freed`` are bytes by which the peak grows if they are saved."""

    op: str
    name: str
    nodes: int
    runs: int
    bytes: int
    freed: int
    seconds: float


@dataclass(frozen=True)
class PlanReport:
    """What texts and pages show of a plan.

    ``head`` is the plan in a line, ``planned`` its schedule; ``frontier`` are plans of other budgets, as rows
    (`echo.torch.frontier`).
    """

    head: str
    planned: ScheduleView
    frontier: Sequence[Mapping[str, float]] = field(default=())

    @cached_property
    def usages(self) -> Mapping[str, Usage]:
        """The memory of a step, without the plan and with it."""
        return {
            STOCK: usage_of(ScheduleView(self.planned.graph, self.planned.graph.stock)),
            PLANNED: usage_of(self.planned),
        }

    @property
    def overhead(self) -> float:
        """The time that the plan adds to a step without echo, as a part of it."""
        return self.planned.graph.overhead(self.planned.without(()).seconds)

    def again(self, most: int = _MOST_ROWS) -> list[Again]:
        """What runs again, by operator and size, the most bytes first."""
        nodes, seconds = self.planned.graph.training.nodes, self.planned.graph.seconds
        groups: dict[tuple[str, int], list[int]] = {}
        for number in self.planned.runs:
            size = sum(tensor.bytes for tensor in nodes[number].outputs)
            groups.setdefault((nodes[number].op, size), []).append(number)
        largest = sorted(groups.items(), key=lambda item: -item[0][1] * len(item[1]))[:most]
        peak = self.planned.without(()).bytes
        return [
            Again(op, nodes[numbers[0]].name, len(numbers), sum(self.planned.runs[one] for one in numbers),
                  size * len(numbers), self.planned.without(numbers).bytes - peak,
                  sum(seconds[one] * self.planned.runs[one] for one in numbers))
            for (op, size), numbers in largest
        ]  # fmt: skip

    def text(self) -> str:
        """The values of a plan as a text of at most 120 columns."""
        with preserve_python_rng():
            tables = [self._memory(), *(self._alive(name, usage) for name, usage in self.usages.items())]
            if self.planned.runs:
                tables.append(self._again())
            return text_of([self.head, *tables, self._saved()], _WIDTH)

    def _megabytes(self, size: int) -> str:
        """MB with more digits for small graphs."""
        return megabytes(size, 1 if self.usages[STOCK].live_peak >= _SMALL else 3)

    def _memory(self) -> Table:
        table = table_of("memory (MB)", "before", "after")
        before, after = (usage.by_kind for usage in self.usages.values())
        table.add_row("alive at the peak", *(self._megabytes(usage.live_peak) for usage in self.usages.values()))
        for kind, *sizes in largest_rows([before, after], _MOST_ROWS):
            table.add_row(f"  {kind}", *map(self._megabytes, sizes))
        return table

    def _alive(self, name: str, usage: Usage) -> Table:
        """The largest values at the peak."""
        table = table_of(f"{name}: alive at the peak", "MB")
        for heading in ("operator", "kind", "module"):
            table.add_column(heading, overflow="fold")
        for tensor in usage.at_peak[:_MOST_ROWS]:
            table.add_row(tensor.name, self._megabytes(tensor.bytes), tensor.op, tensor.kind, tensor.layer)
        return table

    def _again(self) -> Table:
        table = table_of("runs again", "nodes", "runs", "MB", "MB freed", "ms")
        table.add_column("for example", overflow="fold")
        for row in self.again():
            sizes = self._megabytes(row.bytes), self._megabytes(row.freed)
            table.add_row(row.op, str(row.nodes), str(row.runs), *sizes, f"{1000 * row.seconds:.2f}", row.name)
        return table

    def _saved(self) -> Table:
        table = table_of("saved for the backward pass", "MB")
        for heading in ("operator", "from", "why"):
            table.add_column(heading, overflow="fold")
        for _, decision in zip(range(_MOST_ROWS), self.planned.residuals()):
            origin = self.planned.graph.origin(decision.node, code=False)
            table.add_row(decision.name, self._megabytes(decision.bytes), decision.op, origin, decision.reason)
        return table

    def html(self, title: str = "") -> str:
        """One page that needs nothing else.

        Raises:
            UnsupportedError: jinja2 or vl-convert-python is not there.
        """
        with preserve_python_rng():
            from echo.report.pages import rendered  # imports rich, which draws from Python's random generator

        stock, planned = (usage.live_peak for usage in self.usages.values())
        decisions = sorted(self.planned.decisions, key=lambda decision: -decision.bytes)[:_MOST_LISTED]
        values = {
            "head": self.head, "usages": self.usages, "again": self.again(_MOST_LISTED),
            "decisions": [(one, self.planned.graph.origin(one.node)) for one in decisions],
            "step_ms": 1000 * self.planned.graph.step_seconds, "change": 100 * (planned / max(stock, 1) - 1),
            "overhead": 100 * self.overhead, "has_frontier": bool(self.frontier), "most_values": _MOST_VALUES,
            "STOCK": STOCK, "PLANNED": PLANNED,
        }  # fmt: skip
        versions = {"torch": torch.__version__, "Python": platform.python_version()}
        return rendered(_TEMPLATE, title or "training step", self._charts, versions, values)

    def _charts(self) -> Mapping[str, Any]:
        from echo.report.pages import treemap

        stock, planned = self.usages.values()
        charts = {"timeline": timeline(self), "kinds": by_kind(self)}
        for name, usage in self.usages.items():
            charts[f"layers-{name}"] = treemap(usage, most=max(stock.live_peak, planned.live_peak))
        if self.frontier:
            chosen = {"total": planned.live_peak, "time": 1 + self.overhead}
            seconds = self.planned.graph.step_seconds
            charts["frontier"] = frontier(self.frontier, chosen, stock.live_peak, seconds, "MB alive at the peak")
        return charts
