"""Arrays that operators are handed for their shape alone, when their memory already holds something else.

An executor's planner gives the memory of such an input (of `zeros_like`, `ones_like`, `reshape_like`) to other arrays
without waiting for the operator; a CachedOp's planner waits. The operator then finds another array there, whose oneDNN
layout may be that of another shape. MXNet makes every input plain before it asks whether it is read, and ends with "The
size of NDArray doesn't match the requested MKLDNN memory desc". Whether that happens depends on which arrays share
memory: a plan could cause it where the user's graph is spared. echo's own storage assignment waits for all readers.
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
