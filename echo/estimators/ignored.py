"""Arrays that operators are handed for their shape alone, when their memory already holds something else.

MXNet's planner gives the memory of such an input (of `zeros_like`, `ones_like`, `reshape_like`) to others without
waiting for the operator; a CachedOp's waits. The operator then finds an array in its place, whose layout of oneDNN's
may be that of another shape. MXNet makes every input plain before it asks what is read of it, and ends with "The size
of NDArray doesn't match the requested MKLDNN memory desc". Whether it comes to that depends on who shares memory: a
plan could bring it about where the user's graph is spared. echo's own storage assignment waits for all readers.
"""

from __future__ import annotations

from echo.estimators.inplace import has_layouts
from echo.ir.graph import VARIABLE, Graph
from echo.ir.training_graph import EXECUTOR, TrainingGraph


def read_too_late(graph: Graph, training: TrainingGraph, device: str) -> str:
    """The name of an operator that may find another array in the place of an input it ignores; empty where none may."""
    if training.runner != EXECUTOR or not has_layouts(graph, device):
        return ""
    kept = {training.entry_id(entry) for entry in training.outputs}  # nobody gets their memory
    for _, node in training.operators():
        for position in node.ignored:
            entry = node.inputs[position]
            source = training.nodes[entry.node]
            if source.op != VARIABLE and entry.index not in source.external and training.entry_id(entry) not in kept:
                return node.name
    return ""
