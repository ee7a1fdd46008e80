"""Where operators work in place: in a plan as in the original graph, since oneDNN's layouts follow from it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import AbstractSet, Iterable, Iterator, Mapping, Sequence, Tuple

from echo.estimators.layouts import has_layouts, may_be_blocked
from echo.estimators.mxnet_storage import Storage
from echo.estimators.storage_planner import blocks
from echo.ir.graph import Entry, Graph
from echo.ir.ops import spec
from echo.ir.schedule import RecomputeSchedule, with_clones
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode, why_not_reader

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

_Pair = Tuple[int, int]  # an input, and the output that is computed over it


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

    ``no_inplace`` of the result are the marks with which its nodes have to be bound for that: for the options that
    MXNet could take under a plan.
    """
    sensitive = _Sensitive(training, device)
    numbers = [number for number, _ in training.operators() if number in sensitive]
    if not numbers:
        return training
    inplace = blocks(training).inplace
    unused: dict[tuple[int, str], list[set[_Pair]]] = defaultdict(list)
    anyway: dict[tuple[int, str], list[set[_Pair]]] = defaultdict(list)
    owned: dict[int, tuple[int, str]] = {}
    nodes = list(training.nodes)
    for number in numbers:
        node, first = training.nodes[number], training.first_entry[number]
        taken = {(inplace[first + o], o) for o in range(len(node.outputs))}
        pairs = {(i, o) for i, o, same in node.inplace if not same and (i, o) not in taken}
        owner = sensitive.forward_of(node).original
        if owner is None:  # a sum of gradients, which cannot be marked, and which no recomputation changes
            nodes[number] = _without(node, pairs)
        else:
            owned[number] = (owner, node.op)
            unused[owner, node.op].append(pairs)
            anyway[owner, node.op].append(_not_taken_anyway(training, node, taken))
    # a node and its gradient may be of one operator, and have one attribute
    removed = {key: set.intersection(*option_sets) for key, option_sets in unused.items()}
    for number, key in owned.items():
        nodes[number] = _without(nodes[number], removed[key])
    never = {key: set.intersection(*option_sets) for key, option_sets in anyway.items()}
    marked = {key: pairs - never[key] for key, pairs in removed.items()}
    return replace(training, nodes=tuple(nodes), no_inplace=_texts(marked))


def _not_taken_anyway(
    training: TrainingGraph, node: TrainingNode, taken: AbstractSet[tuple[int, int]]
) -> set[tuple[int, int]]:
    """The in-place options that MXNet does not take under a plan either, without a mark.

    Those are options over gradients, which have as many readers under a plan, and options that need the input of one
    that MXNet takes before. Where a program needs fewer gradients than there are, MXNet takes some of them, with a plan
    and without: there, a mark would be wrong.
    """
    found: set[_Pair] = set()
    used: set[int] = set()
    for i, o, same in node.inplace:
        if (i, o) in taken:
            used.add(i)
        elif not same and (i in used or _is_gradient(training, node.inputs[i])):
            found.add((i, o))
    return found


def _is_gradient(training: TrainingGraph, entry: Sequence[int]) -> bool:
    """Whether an entry is computed in the backward pass, and not by a clone."""
    node = training.nodes[entry[0]]
    return not node.is_variable and not node.forward and node.original is None


def over_first_input(training: TrainingGraph, device: str) -> frozenset[int]:
    """Gradient nodes that may work in place over their first input, and whose bits may depend on it.

    ``training`` is the graph as MXNet makes it. Where a program needs fewer gradients than there are, MXNet takes
    options that it does not take in that graph.
    """
    sensitive = _Sensitive(training, device)
    return frozenset(
        number for number, node in training.operators()
        if not node.forward and number in sensitive and any(i == 0 and not same for i, _, same in node.inplace)
    )  # fmt: skip


def displacing(training: TrainingGraph, changed: TrainingGraph, device: str) -> frozenset[int]:
    """The user's nodes (by number) whose gradient rules have an operator lose its place.

    ``training`` comes from `as_stock`, ``changed`` has gradients that follow rules. One that reads an array twice does
    not write over it, nor does any operator that runs before another reader. If no rule is found to be at fault, all of
    them are.
    """
    sensitive = _Sensitive(changed, device)
    if not any(number in sensitive for number, _ in changed.operators()):
        return frozenset()
    storage, readers = blocks(changed), _readers(changed)
    displaced: set[int] = set()
    for number, position, output, same in _lost(changed, storage, sensitive):
        if not readers[Entry(number, output)] or (same and not _keeps_layout(changed.nodes[number])):
            continue
        source = changed.nodes[number].inputs[position]
        chunk = storage.chunk[changed.entry_id(source)]
        displaced |= {
            forward for reader, node in changed.operators()
            if any(storage.chunk[changed.entry_id(entry)] == chunk for entry in node.inputs)
            and (reader >= len(training.nodes) or node.inputs != training.nodes[reader].inputs)
            for forward in _ruled(changed, node)
        } or set(changed.gradient_rules)  # fmt: skip
    return frozenset(displaced)


def _ruled(changed: TrainingGraph, node: TrainingNode) -> Iterator[int]:
    """The user's nodes with a rule of whose gradient this is."""
    for dep in () if node.forward else node.control_deps:
        original = changed.nodes[dep].original
        if original is not None and original in changed.gradient_rules:
            yield original


def _readers(training: TrainingGraph) -> Mapping[Entry, list[int]]:
    readers: dict[Entry, list[int]] = defaultdict(list)
    for number, node in training.operators():
        for position, entry in enumerate(node.inputs):
            if position not in node.shape_only:
                readers[Entry(entry.node, entry.index)].append(number)
    return readers


def _keeps_layout(node: TrainingNode) -> bool:
    """Whether this is a copy that has its input's layout in place, and the plain one elsewhere."""
    layout = spec(node.op).layout
    return layout.identity and layout.clone_layout_may_differ


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
    storage, readers = blocks(planned), _readers(planned)
    of_chunk: dict[int, set[int]] = defaultdict(set)  # also of the copies in it
    for entry, numbers in readers.items():
        of_chunk[storage.chunk[planned.entry_id(entry)]].update(numbers)

    def clones(numbers: Iterable[int]) -> set[int]:
        nodes = (planned.nodes[number] for number in numbers)
        return {number_of[node.original] for node in nodes if not node.forward and node.original is not None}

    refused: set[int] = set()
    for number, position, output, same in _lost(planned, storage, _Sensitive(planned, device)):
        if not readers[Entry(number, output)] or (same and not _keeps_layout(planned.nodes[number])):
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
    """In-place options that are not taken, of nodes whose bits may depend on it: node, input, output, identity.

    The graph comes from `as_stock`: without a plan, MXNet takes all options. Another operator for a gradient may have
    several for one output, of which MXNet takes the first.
    """
    for number, node in planned.operators():
        placed: set[int] = set()
        for position, output, same in node.inplace if number in sensitive else ():
            if storage.inplace[planned.first_entry[number] + output] == position:
                placed.add(output)
            elif same or output not in placed:
                yield number, position, output, same
