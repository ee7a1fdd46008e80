"""A fused operator and what it takes the place of, as two small graphs that can be timed against each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Mapping

from echo.ir.graph import VARIABLE, VERSION, Entry, Graph, Node
from echo.ir.training_node import TensorType
from echo.passes.patterns.attention import ATTENTION
from echo.passes.patterns.graph_view import Fusion, View, plain
from echo.passes.patterns.softmax_loss import CROSS_ENTROPY
from echo.passes.patterns.substitute import applied

Types = Mapping[Entry, TensorType]
_PACKING = frozenset({"Reshape", "_rnn_param_concat"})  # weights on their way into an RNN operator


@dataclass(frozen=True)
class Sample:
    """``own`` has the user's operators, ``fused`` the fused one; ``types`` are those of the variables, by name."""

    own: Graph
    fused: Graph
    types: Mapping[str, TensorType]


def sample(view: View, fusion: Fusion, types: Types, rows: Mapping[str, int] | None = None) -> Sample:
    """The sample of a fusion; ``rows`` gives sizes of its shapes ("N", "T") other values than they have.

    Lengths of attention are nearly those of all keys, and what no gradient goes through in the user's graph gets none.
    """
    build = _Made(view, fusion, types, rows or {})
    heads = tuple(build.put(entry) for entry in fusion.outputs)
    nodes = tuple(
        node._with(inputs=tuple(map(build.new, node.inputs)), name=f"f{number}")
        for number, node in enumerate(fusion.nodes)
    )
    unfused = build.graph(heads)
    outputs = dict(zip(heads, map(build.new, fusion.outputs.values())))
    moved = replace(fusion, nodes=nodes, outputs=outputs, replaced=frozenset(head.node for head in heads))
    fused = applied(unfused, [moved], copies=False)
    assert fused is not None, "what a fusion reads does not depend on what it computes"
    return Sample(unfused, fused, build.variables)


class _Made:
    """The nodes of a sample while it is made, and where the user's entries are in it."""

    def __init__(self, view: View, fusion: Fusion, types: Types, rows: Mapping[str, int]) -> None:
        self._view, self._fusion, self._types, self._rows = view, fusion, types, rows
        reads = (*fusion.shapes, *(entry for node in fusion.nodes for entry in node.inputs))
        self._leaves = {plain(entry) for entry in reads if entry.node >= 0 and entry.node not in fusion.replaced}
        self._nodes: list[Node] = []
        self._counts: list[int] = []
        self._at: dict[Entry, Entry] = {}
        self._numbers: dict[int, int] = {}
        self.variables: dict[str, TensorType] = {}

    def put(self, entry: Entry) -> Entry:
        """Returns the sample's entry for one of the user's, and adds the nodes that compute it if they are missing."""
        entry = plain(entry)
        if entry not in self._at:
            self._at[entry] = self._variable(entry) if self._is_read(entry) else self._computed(entry)
        return self._at[entry]

    def new(self, entry: Entry) -> Entry:
        """Returns the sample's entry for one that the fusion reads; those of the fusion's own nodes stay."""
        return self.put(entry) if entry.node >= 0 else entry

    def graph(self, heads: tuple[Entry, ...]) -> Graph:
        starts = [0]
        for count in self._counts:
            starts.append(starts[-1] + count)
        arguments = tuple(number for number, node in enumerate(self._nodes) if node.is_variable)
        return Graph(tuple(self._nodes), heads, arguments, tuple(starts), VERSION)

    def _is_read(self, entry: Entry) -> bool:
        node = self._view.node(entry)
        inside = entry.node in self._fusion.replaced or node.op in _PACKING
        return entry in self._leaves or node.is_variable or not inside

    def _variable(self, entry: Entry) -> Entry:
        name = f"x{len(self.variables)}"
        self.variables[name] = self._type(entry)
        at = self._add(Node(VARIABLE, name), 1)
        if self._fusion.pattern == ATTENTION.name and self._fusion.shapes.get(entry) == "N":
            keys = next(self._types[keys].shape[1] for keys, text in self._fusion.shapes.items() if text == "N,S,D")
            at = self._add(Node("_plus_scalar", name + "_length", (at,), attrs={"scalar": str(keys)}), 1)
        if self._view.is_constant(entry):
            at = self._add(Node("BlockGrad", name + "_constant", (at,)), 1)
        return at

    def _type(self, entry: Entry) -> TensorType:
        tensor, text = self._types[entry], self._fusion.shapes.get(entry, "")
        shape = list(tensor.shape)
        if not text and self._fusion.pattern == CROSS_ENTROPY.name:  # the label, of any type
            scores = next(read for read, form in self._fusion.shapes.items() if form == "...R,V")
            text = "R,1" if len(shape) == len(self._types[scores].shape) else "R"
        for axis, letter in enumerate(reversed(text.replace("...", "").split(",")), 1):
            letter = letter.strip("?#")
            if letter in self._rows and axis <= len(shape) and shape[-axis] > 1:
                shape[-axis] = self._rows[letter]
        return replace(tensor, shape=tuple(shape))

    def _computed(self, entry: Entry) -> Entry:
        if entry.node not in self._numbers:
            node = self._view.graph.nodes[entry.node]
            inputs = tuple(map(self.put, node.inputs))
            attrs = {name: text for name, text in node.attrs.items() if not name.startswith("__")}
            self._numbers[entry.node] = len(self._nodes)
            node = Node(node.op, f"n{len(self._nodes)}", inputs, attrs=attrs)
            self._add(node, self._view.graph.num_outputs(entry.node))
        return Entry(self._numbers[entry.node], entry.index)

    def _add(self, node: Node, outputs: int) -> Entry:
        self._nodes.append(node)
        self._counts.append(outputs)
        return Entry(len(self._nodes) - 1)
