"""A schedule of a data graph as a text, and what lies in memory at its peak."""

from __future__ import annotations

from collections import Counter
from typing import Any, Sequence

from echo.ir.data_graph import DataGraph
from echo.ir.ops import is_heavy_in_torch
from echo.ir.schedule import steps_of
from echo.ir.training_graph import TrainingGraph
from echo.policies.data_problem import Solved
from echo.system.terminal import size_text

_MOST_HELD = 5


def as_value(graph: DataGraph, policy: str, budget: int, solved: Solved) -> dict[str, Any]:
    """Peak, overhead and what runs again, as a JSON value; bytes are live bytes."""
    training, seconds = graph
    runs = Counter(run.node for run in steps_of(training, solved.splits) if run.node != run.slot)
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
