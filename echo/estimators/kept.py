"""Plain copies of maps in oneDNN's layouts, which operators keep beside their arrays for as long as they live.

An operator that is not oneDNN's reads and writes the plain layout. Where an input is in another one, MXNet hands it a
plain copy, and where it works in place over such an array, it writes a plain copy that goes back into that array. The
executor of the operator keeps those copies for good (``StorageFallbackOpExecutor`` and ``CreateDefaultInputs`` in
``attach_op_execs_pass.cc`` of MXNet), in an executor of a symbol and in a CachedOp with ``static_shape``. An operator
that runs again does so by another executor, with copies of its own: they may take more than recomputation saves.

Which maps are in another layout is known only when they are computed: here, all are counted that may be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import AbstractSet, Mapping, Sequence

from echo.estimators.inplace import has_layouts, may_be_blocked
from echo.estimators.planner import blocks
from echo.ir.graph import Entry
from echo.ir.ops import spec
from echo.ir.training_graph import DYNAMIC, STATIC, TrainingGraph
from echo.ir.training_node import TrainingNode


def copied(training: TrainingGraph, device: str) -> frozenset[Entry]:
    """Forward entries of which operators that are not oneDNN's keep plain copies."""
    return frozenset() if _keeps_none(training, device) else frozenset(_blocked_and_kept(training)[0])


def with_kept(training: TrainingGraph, device: str) -> TrainingGraph:
    """The training graph with the bytes that each copy of a forward node would keep (`TrainingNode.kept`)."""
    if _keeps_none(training, device):
        return training
    nodes = list(training.nodes)
    for number, kept in _blocked_and_kept(training)[1].items():
        nodes[number] = nodes[number].having(kept=kept)
    return replace(training, nodes=tuple(nodes))


def _keeps_none(training: TrainingGraph, device: str) -> bool:
    return training.runner in (STATIC, DYNAMIC) or not has_layouts(training, device)


def _blocked_and_kept(training: TrainingGraph) -> tuple[set[Entry], dict[int, int]]:
    """The forward entries that may be in a layout of oneDNN's, and the bytes that each operator would keep for them."""
    inplace = blocks(training).inplace
    blocked: set[Entry] = set()
    kept: dict[int, int] = {}
    for number, node in training.operators():
        if not node.forward:
            continue
        first = training.first_entry[number]
        over = {o: inplace[first + o] for o in range(len(node.outputs)) if inplace[first + o] >= 0}
        inputs = {i for i, entry in enumerate(node.inputs) if Entry(entry.node, entry.index) in blocked}
        blocked |= {Entry(number, o) for o in _blocked_outputs(node, inputs, over)}
        kept_bytes = _kept(training, node, inputs, over)
        if kept_bytes:
            kept[number] = kept_bytes
    return blocked, kept


def _blocked_outputs(node: TrainingNode, inputs: AbstractSet[int], over: Mapping[int, int]) -> list[int]:
    """The outputs that may be in an oneDNN layout, if these inputs are; ``over`` maps outputs in place to inputs."""
    layout = spec(node.op).layout
    if layout.source:
        candidates: Sequence[int] = (0,)
    elif layout.onednn(node.attrs):
        candidates = range(len(node.outputs)) if inputs and not layout.plain else ()
    else:
        candidates = [output for output, position in over.items() if position in inputs]
    return [output for output in candidates if may_be_blocked(node.outputs[output])]


def _kept(training: TrainingGraph, node: TrainingNode, inputs: AbstractSet[int], over: Mapping[int, int]) -> int:
    if spec(node.op).layout.onednn(node.attrs):
        return 0
    copied = Counter(inputs) + Counter(position for position in over.values() if position in inputs)
    return sum(count * training.type_of(node.inputs[position]).bytes for position, count in copied.items())
