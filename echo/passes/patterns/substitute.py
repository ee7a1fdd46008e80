"""Substitutes fused operators for what patterns matched, and reads unrolled steps."""

from __future__ import annotations

from typing import Iterator, NamedTuple, Sequence, Tuple, Union

from echo.ir.graph import PREFIX, Entry, Graph, Node, num_outputs
from echo.ir.op_spec import COPY_ATTRIBUTE, is_true
from echo.passes.patterns.graph_view import Fusion, View, local

# Replaces nodes of a graph by fusions: the graph keeps its outputs, in the order in which MXNet walks it.

_OVERWRITES = ("reverse",)  # as all operators of an extension library do
_Key = Union[int, Tuple[int, int]]  # a node of the user, or a position within a fusion


class _Moved:
    """A graph with fusions: its nodes by keys, and the entries that are read instead of the user's."""

    def __init__(self, graph: Graph, fusions: Sequence[Fusion]) -> None:
        self._graph, self._fusions = graph, fusions
        self._moved: dict[Entry, tuple[Entry, int]] = {}
        self._read: dict[_Key, int] = {}  # the least number of outputs of a new node; the user's nodes know theirs
        for number, fusion in enumerate(fusions):
            self._moved.update({entry: (new, number) for entry, new in fusion.outputs.items()})
            for new in fusion.outputs.values():
                key = (number, -1 - new.node)
                self._read[key] = max(self._read.get(key, 1), new.index + 1)

    def resolve(self, entry: Entry, which: int) -> tuple[_Key, int, int]:
        """The node, output and version that stand for an entry of the user, or of fusion number ``which``."""
        while entry.node >= 0:
            new = self._moved.get(Entry(entry.node, entry.index))
            if new is None:
                return entry.node, entry.index, entry.version
            entry, which = new
        return (which, -1 - entry.node), entry.index, 0

    def node(self, key: _Key) -> tuple[Node, int]:
        """A node and the number of its fusion, -1 for a node of the user."""
        return (self._graph.nodes[key], -1) if isinstance(key, int) else (self._fusions[key[0]].nodes[key[1]], key[0])

    def outputs(self, key: _Key, node: Node) -> int:
        """How many outputs a node has."""
        return self._graph.num_outputs(key) if isinstance(key, int) else max(num_outputs(node), self._read.get(key, 1))

    def below(self, key: _Key) -> list[_Key]:
        """The nodes that have to run before a node: its inputs, then its control dependencies."""
        node, which = self.node(key)
        return [*(self.resolve(entry, which)[0] for entry in node.inputs), *node.control_deps]


def applied(graph: Graph, fusions: Sequence[Fusion], copies: bool) -> Graph | None:
    """The graph with these fusions, in depth-first order as MXNet walks it; None where they would close a cycle."""
    moved = _Moved(graph, fusions)
    numbers: dict[_Key, int] = {}
    nodes: list[Node] = []
    counts: list[int] = []
    for key in _depth_first([moved.resolve(head, -1)[0] for head in graph.heads], moved):
        if key is None:
            return None
        node, which = moved.node(key)
        inputs = [moved.resolve(entry, which) for entry in node.inputs]
        deps = tuple(numbers[dep] for dep in node.control_deps)
        numbers[key] = len(nodes)
        entries = tuple(Entry(numbers[source], index, version) for source, index, version in inputs)
        node = node._with(inputs=entries, control_deps=deps)
        if which >= 0 and node.op.startswith((PREFIX, *_OVERWRITES)) and COPY_ATTRIBUTE not in node.attrs:
            node = node.with_attrs({COPY_ATTRIBUTE: "all" if copies else "sums"})
        nodes.append(node)
        counts.append(moved.outputs(key, node))
    heads = (moved.resolve(head, -1) for head in graph.heads)
    moved_heads = (Entry(numbers[key], index, version) for key, index, version in heads)
    return Graph.of(nodes, moved_heads, counts, graph.attrs)


def _depth_first(heads: Sequence[_Key], moved: _Moved) -> Iterator[_Key | None]:
    """Nodes after their inputs and control dependencies; None where one depends on itself."""
    done: set[_Key] = set()
    entered: set[_Key] = set()
    for head in heads:
        stack = [head]
        while stack:
            key = stack[-1]
            if key in done:
                stack.pop()
                continue
            waiting = [below for below in moved.below(key) if below not in done]
            if not waiting:
                done.add(key)
                entered.discard(key)
                stack.pop()
                yield key
            elif key in entered and any(below in entered for below in waiting):
                yield None
                return
            else:
                entered.add(key)
                stack.extend(reversed(waiting))


# Steps that one layer splits apart and the next puts together again: both then share one array.

NAME = "steps"
ANCHORS = frozenset({"stack", "Concat"})
_SWAP = {"dim1": "0", "dim2": "1"}
_JOINS = frozenset({"stack", "Concat", "reverse", "SwapAxis", "Reshape"})


class _Split(NamedTuple):
    """A split of arrays into all parts along an axis, which the parts do not have any more.

    Each step is a part of the only array, or those of all arrays side by side.
    """

    sources: tuple[Entry, ...]
    axis: str
    reverse: bool


def match(view: View, number: int) -> Fusion | None:
    """The array that takes the place of this node, if it joins all steps of arrays alongside a fused operator."""
    node = view.graph.nodes[number]
    parts = None if number in view.has_control_deps else _parts(view, node)
    if parts is None or not parts[1]:
        return None
    axis, entries = parts
    columns = _side_by_side(view, entries)
    if not node.name.endswith("_echo_steps") and not view.node(columns[0][0]).name.endswith("_echo_split"):
        return None
    split = _split(view, columns)
    if split is None:
        return None
    nodes: list[Node] = []

    def then(op: str, sources: tuple[Entry, ...], attrs: dict[str, str]) -> tuple[Entry, ...]:
        nodes.append(Node(op, f"{node.name}_echo{len(nodes)}", sources, attrs=attrs))
        return (local(len(nodes) - 1),)

    array = split.sources
    if len(array) > 1:
        array = then("Concat", array, {"dim": "2", "num_args": str(len(array))})
    if split.reverse:
        array = then("reverse", array, {"axis": f"({split.axis},)"})
    if split.axis != ("0" if axis == "rows" else axis):
        array = then("SwapAxis", array, _SWAP)
    if axis == "rows":
        array = then("Reshape", array, {"shape": "(-3,-2)"})
    return Fusion(NAME, number, tuple(nodes), {Entry(number): array[0]}, frozenset({number}), {}, "steps put together")


def equal(view: View) -> list[Fusion]:
    """Arrays that are put together alike for several fused operators: the first takes the place of all."""
    first: dict[tuple[object, ...], int] = {}
    taken: dict[int, int] = {}
    for number, node in enumerate(view.graph.nodes):
        if node.op not in _JOINS or "_echo" not in node.name or number in view.has_control_deps:
            continue
        inputs = tuple((taken.get(entry.node, entry.node), entry.index) for entry in node.inputs)
        place = first.setdefault((node.op, tuple(sorted(node.attrs.items())), inputs), number)
        if place != number:
            taken[number] = place
    return [
        Fusion(NAME, number, (), {Entry(number): Entry(place)}, frozenset({number}), {}, "steps put together")
        for number, place in taken.items()
    ]


def _side_by_side(view: View, entries: list[Entry]) -> list[list[Entry]]:
    """For each array that the steps are made of, its parts: both directions of a layer, or one array alone."""
    joined = [view.inputs(entry, ("Concat",)) for entry in entries]
    widths = {len(parts) for parts in joined if parts}
    if not all(joined) or len(widths) != 1 or any(view.node(entry).attrs.get("dim", "1") != "1" for entry in entries):
        return [entries]
    return [list(column) for column in zip(*(parts for parts in joined if parts))]


def _parts(view: View, node: Node) -> tuple[str, list[Entry]] | None:
    """The entries that a node joins, with the new axis along which it does, or "rows" for the first axis."""
    if node.op == "stack":
        axis = node.attrs.get("axis", "0")
        return (axis, list(node.inputs)) if axis in ("0", "1") else None
    axis = node.attrs.get("dim", "1")
    if node.op != "Concat" or axis not in ("0", "1"):
        return None
    expanded = [view.inputs(entry, ("expand_dims",)) for entry in node.inputs]
    if all(expanded) and all(view.node(entry).attrs.get("axis") == axis for entry in node.inputs):
        return axis, [entry[0] for entry in expanded if entry]
    return ("rows", list(node.inputs)) if axis == "0" else None


def _split(view: View, columns: list[list[Entry]]) -> _Split | None:
    splits = [_of_one(view, entries) for entries in columns]
    first = splits[0]
    if first is None or any(split is None or split[1:] != first[1:] for split in splits):
        return None
    return first._replace(sources=tuple(split.sources[0] for split in splits if split))


def _of_one(view: View, entries: list[Entry]) -> _Split | None:
    if len({entry.node for entry in entries}) != 1:
        return None
    node = view.node(entries[0])
    axis = node.attrs.get("axis", "1")
    if node.op not in ("SliceChannel", "_split_v2") or not is_true(node.attrs, "squeeze_axis") or axis not in "01":
        return None
    count = int(node.attrs.get("num_outputs" if node.op == "SliceChannel" else "sections", "0"))
    order = [entry.index for entry in entries]
    if order not in (list(range(count)), list(range(count))[::-1]):
        return None
    return _Split((node.inputs[0],), axis, count > 1 and order[0] > 0)
