"""Nodes that MXNet merges into an equal one before it differentiates (its pass EliminateCommonExpr)."""

from __future__ import annotations

from echo.ir.graph import Graph
from echo.ir.training_graph import TrainingGraph


def merged(graph: Graph, training: TrainingGraph) -> dict[int, int]:
    """For each user's node that is not in the training graph because of an equal one: the number of that one."""
    present = {node.user for node in training.nodes if node.user is not None}
    twins: dict[int, int] = {}
    if len(present) == len(graph.nodes):
        return twins
    known: dict[tuple[object, ...], int] = {}
    for number, node in enumerate(graph.nodes):
        inputs = tuple((twins.get(entry.node, entry.node), entry.index) for entry in node.inputs)
        key = (node.op, tuple(sorted(node.attrs.items())), inputs)
        if number in present:
            known.setdefault(key, number)
        elif key in known:
            twins[number] = known[key]
    return twins
