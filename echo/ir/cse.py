"""Nodes that MXNet merges into an equal one before it differentiates (its pass EliminateCommonExpr)."""

from __future__ import annotations

from echo.ir.graph import Graph
from echo.ir.training_graph import TrainingGraph


def common_subexpressions(graph: Graph, training: TrainingGraph) -> dict[int, int]:
    """Maps each node of the user's graph that MXNet merged into an equal one to the number of that equal node."""
    present = {node.user for node in training.nodes if node.user is not None}
    merged_into: dict[int, int] = {}
    if len(present) == len(graph.nodes):
        return merged_into
    kept_as: dict[tuple[object, ...], int] = {}
    for number, node in enumerate(graph.nodes):
        inputs = tuple((merged_into.get(entry.node, entry.node), entry.index) for entry in node.inputs)
        key = (node.op, tuple(sorted(node.attrs.items())), inputs)
        if number in present:
            kept_as.setdefault(key, number)
        elif key in kept_as:
            merged_into[number] = kept_as[key]
    return merged_into
