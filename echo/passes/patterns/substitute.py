"""Replaces nodes of a graph by fusions: the graph keeps its outputs, in the order in which MXNet walks it."""

from __future__ import annotations

from typing import Iterator, Sequence, Tuple, Union

from echo.ir.graph import PREFIX, Entry, Graph, Node, num_outputs
from echo.ir.op_spec import COPY_ATTRIBUTE
from echo.passes.patterns.graph_view import Fusion

_OVERWRITES = ("reverse",)  # as all operators of an extension library do
_Key = Union[int, Tuple[int, int]]  # a node of the user, or a position within a fusion


class _Moved:
    """A graph with fusions: its nodes by keys, and the entries that are read in the place of the user's."""

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
    return Graph(
        nodes=tuple(nodes),
        heads=tuple(Entry(numbers[key], index, version) for key, index, version in heads),
        arg_nodes=tuple(number for number, node in enumerate(nodes) if node.is_variable),
        row_ptr=_running_sum(counts),
        attrs=graph.attrs,
    )


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


def _running_sum(counts: Sequence[int]) -> tuple[int, ...]:
    sums = [0]
    for count in counts:
        sums.append(sums[-1] + count)
    return tuple(sums)
