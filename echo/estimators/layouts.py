"""oneDNN's layouts of feature maps: which arrays may have one, what operators copy, and which views change them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import AbstractSet, Mapping, Sequence

from echo.estimators.storage_planner import blocks
from echo.ir.graph import VARIABLE, Entry, Graph
from echo.ir.ops import spec
from echo.ir.training_graph import Runner, TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode

_BLOCKED_TYPES = frozenset({"float32", "bfloat16"})
_BLOCKED_AXES = (3, 4, 5)


def has_layouts(graph: Graph | TrainingGraph, device: str) -> bool:
    """Whether arrays of this graph may be in layouts of oneDNN's."""
    return device == "cpu" and any(spec(node.op).layout.source for node in graph.nodes)


def may_be_blocked(tensor: TensorType) -> bool:
    """Whether an array of this type may be in a layout of oneDNN's, in a graph that has any."""
    return tensor.dtype in _BLOCKED_TYPES and len(tensor.shape) in _BLOCKED_AXES


def relaid(training: TrainingGraph, device: str) -> frozenset[Entry]:
    """Forward entries that operators read both before and after a view changes their layout in place."""
    if not has_layouts(training, device):
        return frozenset()
    chunk: dict[Entry, Entry] = {}  # the first entry of those that are copies of each other in one chunk
    viewed: set[Entry] = set()
    read_otherwise: set[Entry] = set()
    for number, node in training.operators():
        inside = {i: o for i, o, same in node.inplace if same}
        for position, entry in enumerate(node.inputs):
            source = Entry(entry.node, entry.index)
            if position in node.shape_only or not may_be_blocked(training.type_of(source)):
                continue
            first = chunk.get(source, source)
            if position in inside and spec(node.op).layout.identity:
                chunk[Entry(number, inside[position])] = first
            elif position in inside and node.forward:
                viewed.add(first)
            elif node.forward or not spec(training.nodes[source.node].op).layout.layout_invariant_grad:
                read_otherwise.add(first)
    changed = viewed & read_otherwise
    return frozenset(entry for first in changed for entry in {first, *(e for e, f in chunk.items() if f == first)})


# Plain copies of feature maps in oneDNN's layouts, which operators keep alongside their arrays for as long as they
# live.
#
# An operator that is not oneDNN's reads and writes the plain layout. Where an input is in another one, MXNet hands it
# a plain copy, and where it works in place over such an array, it writes a plain copy that goes back into that array.
# The executor of the operator keeps those copies for good (``StorageFallbackOpExecutor`` and ``CreateDefaultInputs``
# in ``attach_op_execs_pass.cc`` of MXNet), in an executor of a symbol and in a CachedOp with ``static_shape``. A
# recomputed operator has another executor, with copies of its own: they may take more than recomputation
# saves.
#
# Which feature maps are in another layout is known only when they are computed: here, all are counted that may be.


def copied(training: TrainingGraph, device: str) -> frozenset[Entry]:
    """Forward entries of which operators that are not oneDNN's keep plain copies."""
    return frozenset() if _makes_no_copies(training, device) else frozenset(_blocked_and_copied(training)[0])


def with_layout_copies(training: TrainingGraph, device: str) -> TrainingGraph:
    """Returns the training graph with each `TrainingNode.layout_copy_bytes`."""
    if _makes_no_copies(training, device):
        return training
    nodes = list(training.nodes)
    for number, size in _blocked_and_copied(training)[1].items():
        nodes[number] = nodes[number].having(layout_copy_bytes=size)
    return replace(training, nodes=tuple(nodes))


def _makes_no_copies(training: TrainingGraph, device: str) -> bool:
    return training.runner in (Runner.STATIC, Runner.DYNAMIC) or not has_layouts(training, device)


def _blocked_and_copied(training: TrainingGraph) -> tuple[set[Entry], dict[int, int]]:
    """The forward entries that may be in a oneDNN layout, and the bytes of plain copies that each operator makes."""
    inplace = blocks(training).inplace
    blocked: set[Entry] = set()
    copied: dict[int, int] = {}
    for number, node in training.operators():
        if not node.forward:
            continue
        first = training.first_entry[number]
        over = {o: inplace[first + o] for o in range(len(node.outputs)) if inplace[first + o] >= 0}
        inputs = {i for i, entry in enumerate(node.inputs) if Entry(entry.node, entry.index) in blocked}
        blocked |= {Entry(number, o) for o in _blocked_outputs(node, inputs, over)}
        layout_copy_bytes = _layout_copy_bytes(training, node, inputs, over)
        if layout_copy_bytes:
            copied[number] = layout_copy_bytes
    return blocked, copied


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


def _layout_copy_bytes(
    training: TrainingGraph, node: TrainingNode, inputs: AbstractSet[int], over: Mapping[int, int]
) -> int:
    if spec(node.op).layout.onednn(node.attrs):
        return 0
    copied = Counter(inputs) + Counter(position for position in over.values() if position in inputs)
    return sum(count * training.type_of(node.inputs[position]).bytes for position, count in copied.items())


# Arrays that operators are handed for their shape alone, when their memory already holds something else.
#
# An executor's planner gives the memory of such an input (of `zeros_like`, `ones_like`, `reshape_like`) to other
# arrays without waiting for the operator; a CachedOp's planner waits. The operator then finds another array there,
# whose oneDNN layout may be that of another shape. MXNet makes every input plain before it asks whether it is read,
# and ends with "The size of NDArray doesn't match the requested MKLDNN memory desc". Whether that happens depends on
# which arrays share memory: a plan could cause it where the original graph is spared. echo's own storage assignment
# waits for all readers.


def shape_only_hazard(graph: Graph, training: TrainingGraph, device: str) -> str:
    """Returns the name of an operator that may find another array instead of a shape-only input, or an empty text."""
    if training.runner != Runner.EXECUTOR or not has_layouts(graph, device):
        return ""
    outputs = {training.entry_id(entry) for entry in training.outputs}  # nothing gets their memory
    for _, node in training.operators():
        for position in node.shape_only:
            entry = node.inputs[position]
            source = training.nodes[entry.node]
            if source.op != VARIABLE and entry.index not in source.external and training.entry_id(entry) not in outputs:
                return node.name
    return ""
