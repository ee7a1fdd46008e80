"""Tables and lines that commands print."""

from __future__ import annotations

from collections import Counter
from typing import Any, Mapping, Sequence

from rich.table import Table

from echo.ir.ops import is_heavy_in_torch
from echo.ir.schedule import steps_of
from echo.ir.training_graph import TrainingGraph
from echo.policies.data_graph import DataGraph, Solved
from echo.report.profile import Profile
from echo.report.usage import MIRROR, PLANNED, STOCK
from echo.system.terminal import megabytes, size_text, text_of

# Graphs of a profile side by side as a short table: what MXNet plans, what the executor holds, time.

_WORDS = {
    STOCK: "stock MXNet",
    MIRROR: "MXNet's mirroring",
    PLANNED: "echo",
}
_WIDTH = 100


def compared(profile: Profile) -> list[dict[str, Any]]:
    """Returns a JSON object a graph: its name, bytes (``planned`` by MXNet, ``total`` held by the executor), and times.

    ``time`` is that of a step as a multiple of the stock step's, ``overhead`` what recomputation adds to a step, as a
    fraction; both are predictions, and None for a graph without one.
    """
    overheads, times = {STOCK: 0.0, PLANNED: profile.plan.overhead}, {STOCK: 1.0, PLANNED: profile.plan.time_ratio}
    return [
        {
            "graph": name,
            "planned": usage.planned,
            "total": usage.total,
            "time": times.get(name),
            "overhead": overheads.get(name),
        }
        for name, usage in ((name, profile.usages[name]) for name in _WORDS if name in profile.usages)
    ]


def render_comparison(profile: Profile) -> str:
    """The rows as a table of at most 100 columns, and what the plan has to say."""
    table = Table("training with", title_justify="left")
    for heading in ("planned MB", "of stock", "held in all, MB", "of stock", "predicted time"):
        table.add_column(heading, justify="right")
    graphs = compared(profile)
    stock = next(row for row in graphs if row["graph"] == STOCK)
    for row in graphs:
        cells = [cell for name in ("planned", "total") for cell in _cells(row[name], stock[name])]
        time = "not predicted" if row["time"] is None else f"{100 * (row['time'] - 1):+.1f} %"
        table.add_row(_WORDS[row["graph"]], *cells, time if row is not stock else "")
    return text_of([table, *(f"note: {remark}" for remark in profile.plan.remarks)], _WIDTH)


def _cells(size: int, stock: int) -> tuple[str, str]:
    return megabytes(size), f"{100 * size / stock:.0f} %" if stock else ""


# Sums of recordings side by side, as a table.

_HEADINGS = {"run": "recorded", "off": "without echo", "on": "with echo"}
_MB = 10**6
_FIGURES = {  # name: words, what it is divided by, decimals
    "ms_a_step": ("ms a step (median)", 1, 1),
    "samples_a_second": ("samples a second", 1, 1),
    "process": ("peak of the process, MB", _MB, 0),
    "predicted_process": ("the same, predicted by echo, MB", _MB, 0),
    "storage": ("peak of MXNet's storage, MB", _MB, 1),
    "device": ("memory of the GPUs, MB", _MB, 0),
    "gpu_joules_a_sample": ("GPU energy, J a sample", 1, 3),
    "gpu_watts": ("GPU power, W", 1, 1),
    "cpu_joules_a_sample": ("CPU energy, J a sample", 1, 3),
    "cpu_watts": ("CPU power, W", 1, 1),
    "steps": ("steps measured", 1, 0),
    "steps_left_out": ("steps left out (warm-up)", 1, 0),
}
_COUNTS = ("steps", "steps_left_out")


def render_recording(sums: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each figure that some recording has; of two recordings, also how much the second changes the first."""
    table = Table("", title_justify="left")
    for name in sums:
        table.add_column(_HEADINGS.get(name, name), justify="right")
    if len(sums) == 2:
        table.add_column("change", justify="right")
    for figure, (words, unit, decimals) in _FIGURES.items():
        values = [figures.get(figure) for figures in sums.values()]
        if any(value is not None for value in values):
            cells = ["-" if value is None else f"{value / unit:,.{decimals}f}" for value in values]
            table.add_row(words, *cells, *([] if len(sums) != 2 else [_change(figure, *values)]))
    return text_of([table], 100)


def _change(figure: str, first: float | None, second: float | None) -> str:
    if figure in _COUNTS or first is None or second is None or not first:
        return ""
    return f"{100 * (second / first - 1):+.0f} %"


# A schedule of a data graph as a text, and what lies in memory at its peak.

_MOST_HELD = 5


def as_value(graph: DataGraph, policy: str, budget: int, solved: Solved) -> dict[str, Any]:
    """Peak, overhead and what runs again, as a JSON value; bytes are live bytes."""
    training, seconds = graph
    runs = Counter(run.node for run in steps_of(training, solved.splits) if run.node != run.position)
    return {
        "policy": policy,
        "nodes": len(training.nodes),
        "forward_nodes": sum(node.forward for node in training.nodes),
        "step_seconds": sum(seconds),
        "stock_bytes": training.planned_bytes,
        "peak_bytes": solved.value.bytes,
        "budget_bytes": budget,
        "overhead_seconds": solved.value.seconds,
        "recomputed_nodes": len(runs),
        "recomputed_heavy_nodes": sum(is_heavy_in_torch(training.nodes[number].op) for number in runs),
        "recomputations": sum(runs.values()),
    }


def render_schedule(graph: DataGraph, policy: str, budget: int, solved: Solved) -> str:
    """The schedule in four lines of text."""
    value = as_value(graph, policy, budget, solved)
    step, again = value["step_seconds"], value["overhead_seconds"]
    peak = f"{_mb(value['stock_bytes'])} -> {_mb(value['peak_bytes'])}, budget {_mb(budget)} ({policy})"
    heavy = f"{value['recomputed_heavy_nodes']} of them heavy, in {value['recomputations']} runs"
    return "\n".join([
        f"graph       {value['nodes']} nodes, {value['forward_nodes']} of them forward, {1000 * step:.2f} ms a step",
        f"peak        {peak}",
        f"overhead    {100 * again / max(step, 1e-12):+.2f} %, {1000 * again:.2f} ms",
        f"recomputed  {value['recomputed_nodes']} nodes, {heavy}",
    ])  # fmt: skip


def _mb(size: int) -> str:
    return size_text(size)


def held_at_peak(training: TrainingGraph, solved: Solved) -> str:
    """The largest maps in memory at the step with the most live bytes, as a text."""
    order = [step.node for step in steps_of(training, solved.splits)]
    alive = max(_alive(training, order), key=lambda nodes: sum(_bytes(training, number) for number in nodes))
    largest = sorted(alive, key=lambda number: (-_bytes(training, number), number))[:_MOST_HELD]
    return ", ".join(f"{training.nodes[number].name} {_mb(_bytes(training, number))}" for number in largest)


def _bytes(training: TrainingGraph, number: int) -> int:
    return training.nodes[number].outputs[0].bytes


def _alive(training: TrainingGraph, order: Sequence[int]) -> list[list[int]]:
    """By step, the nodes whose latest values are in memory."""
    needed: set[int] = set()
    alive_by_step = []
    for number in reversed(order):  # a value is alive from when it is made to when it is read for the last time
        needed.update(entry.node for entry in training.nodes[number].inputs)
        alive_by_step.append(sorted(needed | {number}))
        needed.discard(number)
    return alive_by_step[::-1]
