"""The graph of a symbol: nodes and entries, the setting in which it runs, and the names of fused operators."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field, fields
from json.encoder import encode_basestring as _quoted
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

from echo.errors import GraphError
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, GradientReads, GradientRule, own_inputs
from echo.ir.ops import ops_with, spec
from echo.system.files import shortened
from echo.system.process import SLOTS

# The setting of a bind that patterns of fused operators read alongside the graph.


@dataclass(frozen=True)
class Setting:
    """The variables without gradients, and what MXNet's operators draw.

    ``untrained`` are the names of the variables that get no gradient. With ``draws``, kernels draw the random numbers
    that MXNet's Dropout would draw here. With ``onednn_rnn``, oneDNN runs its RNN operator of float32: that has no
    dropout between its layers, whatever its ``p``. With ``onednn_norm``, oneDNN computes a BatchNorm of float32 and its
    ReLU together, and the hook has their gradient right.
    """

    untrained: frozenset[str] = frozenset()
    draws: bool = False
    onednn_rnn: bool = False
    onednn_norm: bool = False


NO_SETTING = Setting()


# The intermediate representation: an immutable NNVM-style graph that knows no framework.
#
# A node computes one or more *entries* (outputs). Nodes are stored in topological order and refer to their inputs by
# entry: (number of the producing node, number of its output). Facts about nodes (shapes, costs, lifetimes) are typed
# results alongside the graph, never attributes on a node.

VARIABLE = "null"
VERSION: Mapping[str, Any] = {"mxnet_version": ["int", 10901]}  # of graphs that are made here: MXNet upgrades no node
_NODE_FIELDS = {"op", "name", "attrs", "inputs", "control_deps", "subgraphs"}


class Entry(NamedTuple):
    """Output ``index`` of node number ``node``; ``version`` counts the writes to a mutable variable."""

    node: int
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nothing needs here
    version: int = 0


@dataclass(frozen=True, **SLOTS)
class Node:
    """One operator, or a variable (``op == "null"``). ``attrs`` are NNVM's strings, unparsed."""

    op: str
    name: str
    inputs: tuple[Entry, ...] = ()
    control_deps: tuple[int, ...] = ()
    attrs: Mapping[str, str] = field(default_factory=dict)
    subgraphs: tuple[Graph, ...] = ()

    @property
    def is_variable(self) -> bool:
        return self.op == VARIABLE

    @property
    def takes_attrs(self) -> bool:
        """Whether attributes may be added: Custom hands all to a constructor of the user's, which knows no others."""
        return spec(self.op).safety.takes_attrs

    def with_attrs(self, attrs: Mapping[str, str]) -> Node:
        """The same node with attributes added."""
        return self._with(attrs={**self.attrs, **attrs})

    def with_name(self, name: str) -> Node:
        """The same node under another name."""
        return self._with(name=name)

    def _with(self, **changed: Any) -> Node:
        node = object.__new__(Node)  # as dataclasses.replace, which takes several times as long
        for name in _FIELDS:
            object.__setattr__(node, name, changed[name] if name in changed else getattr(self, name))
        return node


_FIELDS = tuple(item.name for item in fields(Node))


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order, the entries that are the graph's outputs, and NNVM's graph attributes.

    ``row_ptr`` is NNVM's ``node_row_ptr``: ``row_ptr[i]`` is the number of the first entry of node ``i``.
    """

    nodes: tuple[Node, ...]
    heads: tuple[Entry, ...]
    arg_nodes: tuple[int, ...]
    row_ptr: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    @staticmethod
    def of(
        nodes: Sequence[Node],
        heads: Iterable[Entry],
        counts: Iterable[int] | None = None,
        attrs: Mapping[str, Any] = VERSION,
    ) -> Graph:
        """Returns the graph of these nodes, all of whose variables are arguments.

        ``counts`` are their numbers of outputs, by default one each.
        """
        arguments = tuple(number for number, node in enumerate(nodes) if node.is_variable)
        ends = itertools.accumulate([1] * len(nodes) if counts is None else counts)
        return Graph(tuple(nodes), tuple(heads), arguments, (0, *ends), attrs)

    def __str__(self) -> str:
        lines = [f"graph of {len(self.nodes)} nodes"]
        for number, node in enumerate(self.nodes):
            reads = ", ".join(f"{self.nodes[e.node].name}:{e.index}" for e in node.inputs)
            value = "variable" if node.is_variable else f"{node.op}({reads})"
            lines.append(f"  %{number} {node.name} = {value}")
        lines.append("  return " + ", ".join(f"{self.nodes[e.node].name}:{e.index}" for e in self.heads))
        return "\n".join(lines)

    @property
    def variable_names(self) -> list[str]:
        """The names of the variables, arguments and auxiliary states, in their order."""
        return [self.nodes[number].name for number in self.arg_nodes]

    def num_outputs(self, node: int) -> int:
        """Returns the number of entries that ``node`` computes."""
        return self.row_ptr[node + 1] - self.row_ptr[node]

    def with_attrs(self, added: Mapping[int, Mapping[str, str]]) -> Graph:
        """The same graph with attributes added to some nodes (by node number)."""
        nodes = list(self.nodes)
        for number, attrs in added.items():
            nodes[number] = nodes[number].with_attrs(attrs)
        return self._with(nodes)

    def _with(self, nodes: Iterable[Node]) -> Graph:
        graph = object.__new__(Graph)  # as dataclasses.replace; names and attributes cannot break a rule of `check`
        graph.__dict__.update(self.__dict__, nodes=tuple(nodes))
        return graph

    def all_nodes(self) -> Iterator[Node]:
        """The nodes, each followed by those of the graphs inside it."""
        for node in self.nodes:
            yield node
            for inner in node.subgraphs:
                yield from inner.all_nodes()

    def without_attrs(self, *names: str) -> Graph:
        """The same graph with these attributes on no node; itself where none has them."""
        gone = frozenset(names)
        if all(gone.isdisjoint(node.attrs) for node in self.nodes):
            return self
        return self._with(
            node if gone.isdisjoint(node.attrs)
            else node._with(attrs={name: text for name, text in node.attrs.items() if name not in gone})
            for node in self.nodes
        )  # fmt: skip

    def with_names(self, names: Sequence[str]) -> Graph:
        """The same graph under other node names, one for each node."""
        if len(names) != len(self.nodes):
            raise GraphError(f"expected {len(self.nodes)} names, got {len(names)}")
        return self._with(node.with_name(name) for node, name in zip(self.nodes, names))

    def to_json(self) -> dict[str, Any]:
        """The graph as NNVM's JSON value (the argument of ``json.dumps``)."""
        value: dict[str, Any] = json.loads(self.to_text())
        return value

    def to_text(self, numbered: bool = False) -> str:
        """Writes NNVM's JSON in half the time of ``json.dumps``; ``numbered``: under the names n0, n1 and so on."""
        nodes = [_node_to_text(node, f"n{number}" if numbered else node.name) for number, node in enumerate(self.nodes)]
        attrs = json.dumps(dict(self.attrs), ensure_ascii=False)
        return (f'{{"nodes":[{",".join(nodes)}],"arg_nodes":{list(self.arg_nodes)},"node_row_ptr":{list(self.row_ptr)},'
                f'"heads":{_entries_to_text(self.heads)},"attrs":{attrs}}}')  # fmt: skip

    @staticmethod
    def from_json(value: Any) -> Graph:
        """Reads NNVM's JSON value (as ``json.loads`` returns it).

        Raises:
            GraphError: a field is missing or has another type, or the graph breaks a rule of `check`.
        """
        if not isinstance(value, dict):
            raise GraphError(f"not an NNVM graph: expected a JSON object, got {shortened(repr(value))}")
        if missing := [name for name in ("nodes", "heads", "arg_nodes") if name not in value]:
            raise GraphError(f"not an NNVM graph: it lacks {', '.join(missing)}")
        try:
            nodes = tuple(_node_from_json(number, node) for number, node in enumerate(value["nodes"]))
            return Graph(
                nodes=nodes,
                heads=tuple(Entry(*map(_whole, head)) for head in value["heads"]),
                arg_nodes=tuple(map(_whole, value["arg_nodes"])),
                row_ptr=tuple(map(_whole, value.get("node_row_ptr") or range(len(nodes) + 1))),
                attrs=dict(value.get("attrs", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GraphError(f"not an NNVM graph: {type(error).__name__}: {error}") from error


def _node_to_text(node: Node, name: str) -> str:
    parts = [f'{{"op":{_quoted(node.op)},"name":{_quoted(name)}']
    if node.attrs:
        pairs = [f"{_quoted(key)}:{_quoted(text)}" for key, text in node.attrs.items()]
        parts.append(f'"attrs":{{{",".join(pairs)}}}')
    parts.append(f'"inputs":{_entries_to_text(node.inputs)}')
    if node.control_deps:
        parts.append(f'"control_deps":{list(node.control_deps)}')
    if node.subgraphs:
        parts.append(f'"subgraphs":[{",".join([graph.to_text() for graph in node.subgraphs])}]')
    return ",".join(parts) + "}"


def _entries_to_text(entries: Sequence[Entry]) -> str:
    return f"[{','.join([f'[{node},{index},{version}]' for node, index, version in entries])}]"


def _node_from_json(number: int, value: Any) -> Node:
    try:
        return _node_of(value)
    except (KeyError, TypeError, ValueError, AttributeError, GraphError) as error:
        name = value.get("name") if isinstance(value, dict) else value
        raise GraphError(f"node {number} ({name!r}) is malformed: {type(error).__name__}: {error}") from error


def _node_of(value: Mapping[str, Any]) -> Node:
    unknown = set(value) - _NODE_FIELDS - {"attr", "param", "backward_source_id"}
    if unknown:
        raise GraphError(f"unknown fields {sorted(unknown)}")
    attrs = value.get("attrs") or value.get("attr") or value.get("param") or {}
    if not all(isinstance(item, str) for pair in attrs.items() for item in pair):
        raise GraphError(f"attributes must be strings, got {attrs!r}")
    return Node(
        op=_text(value["op"]),
        name=_text(value["name"]),
        inputs=tuple(Entry(*map(_whole, entry)) for entry in value["inputs"]),
        control_deps=tuple(map(_whole, value.get("control_deps", ()))),
        attrs=dict(attrs),
        subgraphs=tuple(Graph.from_json(graph) for graph in value.get("subgraphs", ())),
    )


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"expected a whole number, got {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got {value!r}")
    return value


def check(graph: Graph) -> None:
    """Checks the rules of every graph: topological order, inputs and heads that exist, consistent entry numbers.

    Raises:
        GraphError: naming the node and the rule.
    """
    if len(graph.row_ptr) != len(graph.nodes) + 1:
        raise GraphError(f"node_row_ptr: expected {len(graph.nodes) + 1} numbers, got {len(graph.row_ptr)}")
    for number in range(len(graph.nodes)):
        _check_node(graph, number)
    for entry in graph.heads:
        if not 0 <= entry.node < len(graph.nodes):
            raise GraphError(f"head {tuple(entry)}: there is no node {entry.node}")
        _check_index(graph, entry, "a head")
    for number in graph.arg_nodes:
        if not (0 <= number < len(graph.nodes) and graph.nodes[number].is_variable):
            raise GraphError(f"arg_nodes: node {number} is not a variable of the graph")


def _check_node(graph: Graph, number: int) -> None:
    node = graph.nodes[number]
    if graph.row_ptr[number + 1] < graph.row_ptr[number] or graph.row_ptr[number] < 0:
        raise GraphError(f"node {number} ({node.name!r}): node_row_ptr must not fall")
    for entry in node.inputs:
        if not 0 <= entry.node < number:
            raise GraphError(
                f"node {number} ({node.name!r}): reads node {entry.node}, expected one before it "
                "(the graph has a cycle or is not in topological order)"
            )
        _check_index(graph, entry, f"node {number} ({node.name!r})")
    if any(not 0 <= dep < number for dep in node.control_deps):
        raise GraphError(f"node {number} ({node.name!r}): control dependencies must come before it")


def _check_index(graph: Graph, entry: Entry, reader: str) -> None:
    # row_ptr counts every output that NNVM knows, hidden ones included
    if not 0 <= entry.index < max(1, graph.num_outputs(entry.node)):
        raise GraphError(
            f"{reader}: reads output {entry.index} of {graph.nodes[entry.node].name!r}, which has "
            f"{graph.num_outputs(entry.node)}"
        )


# The fused kernels as operators of MXNet's graphs: what planning has to know of them.

PREFIX = "_echo_"
# Which arrays the gradient of each kernel reads, of all that MXNet hands it. The kernels' ``table.cc`` says the same.
READS: Mapping[str, GradientReads] = {
    op[len(PREFIX) :]: reads
    for op in sorted(ops_with(lambda spec: True))
    if (reads := spec(op).gradient.gradient_reads) is not None
}


def fused_node(kernel: str, name: str, inputs: Sequence[Entry | None], attrs: Mapping[str, str] = {}) -> Node:
    """The operator of a kernel. Inputs that are None are optional ones that are not there.

    Its gradient holds on to no more than it reads: instead of each other input stands the first that it reads.
    """
    gradients, needed, outputs = READS[kernel]
    needed = "".join(bit for bit, entry in zip(needed, inputs) if entry is not None)
    bits = gradients + needed + outputs
    op, first = PREFIX + kernel, bits.find("1")
    kernel_attrs = {"present": "".join("0" if entry is None else "1" for entry in inputs)}
    if first >= 0:
        read = own_inputs(*(position if bit == "1" else first for position, bit in enumerate(bits)))
        kernel_attrs[GRADIENT_ATTRIBUTE] = GradientRule(f"_backward_{op}", f"_backward_{op}", read).text
    return Node(op, name, tuple(entry for entry in inputs if entry is not None), attrs={**attrs, **kernel_attrs})


def walk(starts: Iterable[int], following: Callable[[int], Iterable[int]]) -> Iterator[int]:
    """Yields these nodes and all that follow from them, by number, each once."""
    waiting = list(dict.fromkeys(starts))
    seen = set(waiting)
    while waiting:
        number = waiting.pop()
        yield number
        new = [after for after in dict.fromkeys(following(number)) if after not in seen]
        seen.update(new)
        waiting += new


def num_outputs(node: Node) -> int:
    """Returns the number of outputs of a node that a fusion puts into a graph."""
    outputs = spec(node.op).outputs
    return int(node.attrs[outputs]) if isinstance(outputs, str) else outputs
