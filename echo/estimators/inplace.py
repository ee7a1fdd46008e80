"""What oneDNN's layouts and MXNet's in-place rules do to a graph whose nodes are recomputed."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import AbstractSet, Iterable, Iterator, Mapping, Sequence

from echo.estimators.mxnet_storage import Storage
from echo.estimators.storage_planner import blocks
from echo.ir.graph import VARIABLE, Entry, Graph
from echo.ir.ops import spec
from echo.ir.schedule import RecomputeSchedule, with_clones
from echo.ir.training_graph import Runner, TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode, why_not_reader

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


# Which operators work in place under a plan: those that do in the original graph, wherever bits could depend on it.
#
# A clone has one reader, and a feature map that is recomputed has none that waits for it, so MXNet would take in-place
# options that it does not take in the original graph, and lose others, where a clone still reads what was overwritten.
# Three things make that visible:
#
# - oneDNN keeps its layout with a chunk of memory. An operator without an implementation of oneDNN writes the plain
#   layout, but where it works in place it keeps the layout that it finds. A sum over a blocked array (BatchNorm, its
#   gradient) is added up in another order than one over a plain array, so last bits change, in the forward pass too.
# - The gradient of PReLU writes over the gradient that it reads, in place, before it is done with reading: MXNet's own
#   result depends on which arrays share memory.
# - A view (Reshape, Flatten, expand_dims) is computed in place of what it views, in the plain layout: from then on, its
#   input is there in the plain layout, too (`relaid`). A clone of that input would not be, a clone that reads it would
#   read another layout than its original, and max Pooling's gradient finds other maxima.
#
# So of such nodes only the options remain that MXNet takes without a plan (`as_stock`): the planner sees no others,
# and an attribute has the native hook take the others from MXNet as well. Where that fails, `moved` names the nodes
# to keep.

_BLOCKED_TYPES = frozenset({"float32", "bfloat16"})
_BLOCKED_AXES = (3, 4, 5)


def has_layouts(graph: Graph | TrainingGraph, device: str) -> bool:
    """Whether arrays of this graph may be in layouts of oneDNN's."""
    return device == "cpu" and any(spec(node.op).layout.source for node in graph.nodes)


def memory_frozen_reason(graph: Graph, device: str) -> str:
    """Why nothing about the memory of a graph may change; empty where it may.

    Control flow and Custom operators look at their arrays when work is handed out, not when it is done. A chunk may
    then still hold an array in a layout of oneDNN's, and another array by the time that they run. Gradients that are
    added to what memory holds are other ones wherever memory is another.
    """
    node = next((node for node in graph.all_nodes() if spec(node.op).gradient.adds_to_memory), None)
    if node is not None:
        return f"MXNet adds gradients of {node.op} ({node.name!r}) to what memory holds: all of it stays as it is"
    early = next((node for node in graph.nodes if node.subgraphs or spec(node.op).safety.reads_at_dispatch), None)
    if early is None or not has_layouts(graph, device):
        return ""
    return f"{early.op} ({early.name!r}) looks at its arrays too early next to convolutions: all memory stays as it is"


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


def in_place(training: TrainingGraph) -> frozenset[int]:
    """The forward identities (copies) that MXNet computes in place without a plan: they leave the layout as it is."""
    copies = [number for number, node in training.operators() if node.forward and spec(node.op).layout.identity]
    if not copies:
        return frozenset()
    inplace = blocks(training).inplace
    return frozenset(number for number in copies if inplace[training.first_entry[number]] == 0)


class _Sensitive:
    """The nodes of a graph whose bits, or those of later nodes, may depend on where they work in place."""

    def __init__(self, training: TrainingGraph, device: str) -> None:
        self._training, self._layouts = training, has_layouts(training, device)

    def __contains__(self, number: int) -> bool:
        node = self._training.nodes[number]
        if not node.inplace:
            return False
        forward = self.forward_of(node)
        if why_not_reader(forward.op, forward.attrs):
            return True
        if not self._layouts or spec(node.op).layout.keeps(node.attrs):
            return False
        return any(may_be_blocked(self._training.type_of(node.inputs[position])) for position, _, _ in node.inplace)

    def forward_of(self, node: TrainingNode) -> TrainingNode:
        """The forward node of a gradient; any other node itself."""
        for dep in () if node.forward or node.original is not None else node.control_deps:
            if self._training.nodes[dep].original is not None:
                return self._training.nodes[dep]
        return node


def as_stock(training: TrainingGraph, device: str) -> TrainingGraph:
    """The training graph with those in-place options alone that MXNet takes without a plan, where bits depend on them.

    ``no_inplace`` of the result are the marks with which its nodes have to be bound for that.
    """
    sensitive = _Sensitive(training, device)
    numbers = [number for number, _ in training.operators() if number in sensitive]
    if not numbers:
        return training
    inplace = blocks(training).inplace
    unused: dict[tuple[int, str], list[set[tuple[int, int]]]] = defaultdict(list)
    owned: dict[int, tuple[int, str]] = {}
    nodes = list(training.nodes)
    for number in numbers:
        node, first = training.nodes[number], training.first_entry[number]
        pairs = {(i, o) for i, o, same in node.inplace if not same and inplace[first + o] != i}
        owner = sensitive.forward_of(node).original
        if owner is None:  # a sum of gradients, which cannot be marked, and which no recomputation changes
            nodes[number] = _without(node, pairs)
        else:
            owned[number] = (owner, node.op)
            unused[owner, node.op].append(pairs)
    # a node and its gradient may be of one operator, and have one attribute
    removed = {key: set.intersection(*option_sets) for key, option_sets in unused.items()}
    for number, key in owned.items():
        nodes[number] = _without(nodes[number], removed[key])
    return replace(training, nodes=tuple(nodes), no_inplace=_texts(removed))


def _without(node: TrainingNode, removed: AbstractSet[tuple[int, int]]) -> TrainingNode:
    if not removed:
        return node
    return node.having(inplace=tuple((i, o, same) for i, o, same in node.inplace if (i, o) not in removed))


def _texts(removed: Mapping[tuple[int, str], AbstractSet[tuple[int, int]]]) -> dict[int, str]:
    parts: dict[int, list[str]] = defaultdict(list)
    for (owner, op), pairs in sorted(removed.items()):
        if pairs:
            parts[owner].append(f"{op}:" + ",".join(f"{i}>{o}" for i, o in sorted(pairs)))
    return {owner: ";".join(texts) for owner, texts in parts.items()}


def moved(
    training: TrainingGraph, device: str, recompute: Iterable[Entry], schedule: RecomputeSchedule
) -> frozenset[int]:
    """The nodes that must not be recomputed, so that all nodes work in place as they do in the original graph.

    ``training`` comes from `as_stock`, so MXNet takes all options that it still has. One is lost where a clone reads an
    array that the original graph has overwritten by then, or where a clone has other readers than its original. A copy
    is no longer in place where the backward graph of a CachedOp reads a stashed array.
    """
    stock_sensitive = _Sensitive(training, device)
    if not any(number in stock_sensitive for number, _ in training.operators()):
        return frozenset()
    planned = with_clones(training, recompute, schedule)
    number_of = training.number_of
    storage = blocks(planned)
    readers: dict[Entry, list[int]] = defaultdict(list)
    of_chunk: dict[int, set[int]] = defaultdict(set)  # also of the copies in it
    for number, node in planned.operators():
        for position, entry in enumerate(node.inputs):
            if position not in node.shape_only:
                readers[Entry(entry.node, entry.index)].append(number)
                of_chunk[storage.chunk[planned.entry_id(entry)]].add(number)

    def clones(numbers: Iterable[int]) -> set[int]:
        nodes = (planned.nodes[number] for number in numbers)
        return {number_of[node.original] for node in nodes if not node.forward and node.original is not None}

    refused: set[int] = set()
    for number, position, output, same in _lost(planned, storage, _Sensitive(planned, device)):
        layout = spec(planned.nodes[number].op).layout
        if not readers[Entry(number, output)] or (same and not (layout.identity and layout.clone_layout_may_differ)):
            continue
        if same:  # the clone of a copy: out of place it would make a plain array of a blocked one
            refused |= clones([number])
            continue
        source = planned.nodes[number].inputs[position]
        sharing = of_chunk[storage.chunk[planned.entry_id(source)]]
        refused |= (clones([number]) or clones(readers[Entry(source.node, source.index)]) or clones(sharing)
                    or set(number_of.values()))  # fmt: skip
    return frozenset(refused)


def _lost(planned: TrainingGraph, storage: Storage, sensitive: _Sensitive) -> Iterator[tuple[int, int, int, bool]]:
    """In-place options that are not taken, of nodes whose bits may depend on it: node, input, output, identity."""
    for number, node in planned.operators():
        for position, output, same in node.inplace if number in sensitive else ():
            if storage.inplace[planned.first_entry[number] + output] != position:
                yield number, position, output, same
