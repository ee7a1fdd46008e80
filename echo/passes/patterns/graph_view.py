"""The view of a graph by which patterns match: by structure, never by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence, Union

from echo.ir.graph import NO_SETTING, Entry, Graph, Node, Setting, walk
from echo.ir.op_spec import is_true

ADD = frozenset({"elemwise_add", "_npi_add", "broadcast_add"})
MUL = frozenset({"elemwise_mul", "_npi_multiply", "broadcast_mul"})
SUM = frozenset({"sum", "_np_sum"})
_ACTIVATIONS = {
    "tanh": frozenset({"tanh", "_npi_tanh"}), "sigmoid": frozenset({"sigmoid", "_npx_sigmoid"}),
    "relu": frozenset({"relu", "_npx_relu"}), "softrelu": frozenset(),
}  # fmt: skip
ACTIVATED = frozenset({"Activation"}).union(*_ACTIVATIONS.values())
_ALIKE = frozenset({"elemwise_add", "elemwise_mul", "elemwise_sub", "add_n", "where", "Concat"})  # one batch for all
_COMPARED = ("equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal", "less", "less_equal")
_BLOCKING = frozenset({  # operators through which no gradient goes
    "BlockGrad", "stop_gradient", "ones_like", "zeros_like", "_contrib_arange_like", "_npx_arange_like", "shape_array",
    "size_array", "argmax", "argmin", "one_hot",
    *(form.format(kind) for kind in _COMPARED for form in
      ("_{}", "broadcast_{}", "_{}_scalar", "_npi_{}", "_npi_{}_scalar")),
})  # fmt: skip


class Part(NamedTuple):
    """Part ``number`` of ``of`` equal ones of ``source``, along its last axis or its axis 1, split by ``node``."""

    source: Entry
    number: int
    of: int
    node: int


def plain(entry: Entry) -> Entry:
    """Returns the entry without its version: any write to it counts as the same."""
    return Entry(entry.node, entry.index) if entry.version else entry


def local(position: int, index: int = 0) -> Entry:
    """Output ``index`` of the new node at this position of a `Fusion`."""
    return Entry(-1 - position, index)


@dataclass(frozen=True)
class Fusion:
    """Nodes that take the place of some of the user's.

    Attributes:
        pattern, anchor: the name of the pattern, and the user's node at which it matches.
        nodes: new nodes, whose inputs are the user's entries, or `local` ones of new nodes before them.
        outputs: for each entry of the user that stays in use, the entry that its readers read from now on.
        replaced: the user's nodes that the graph does not need any more.
        shapes: the shapes that the operator needs of the user's entries: texts such as "B,4H".
        label: the name of the new operator in messages for the user.
        shape_source: the entry whose shape alone gives the operator all its shapes, if there is one.
        min_bytes: an entry of the user's, and the bytes that it has to have for the fusion to gain anything.
        dtypes: the types of numbers with which the operator computes what the user's nodes do.
        hidden_bytes: memory that the replaced nodes hold where no planner sees it: so many times the bytes of an entry.
    """

    pattern: str
    anchor: int
    nodes: tuple[Node, ...]
    outputs: Mapping[Entry, Entry]
    replaced: frozenset[int]
    shapes: Mapping[Entry, str]
    label: str
    shape_source: Entry | None = None
    min_bytes: tuple[Entry, int] | None = None
    dtypes: tuple[str, ...] = ("float32", "float16")
    hidden_bytes: tuple[int, Entry] | None = None

    @property
    def match_site(self) -> tuple[str, int]:
        """Where it stands, as plans say it: the pattern and the anchor."""
        return self.pattern, self.anchor


Match = Callable[["View", int], Union[Fusion, str, None]]


@dataclass(frozen=True)
class Pattern:
    """A row of the patterns: where it may match, and the function that matches it.

    ``match`` returns the fusion that replaces a node, a text that says why there is none (a near-miss), or None. A
    fusion can be matched again from its anchor alone.

    Attributes:
        name: the name in plans.
        anchors: the operators of nodes at which ``match`` may return something.
        match: matches by structure, never by name.
        reads: operators, one of which has to compute an input of the anchor; empty for any.
        is_layer: whether it replaces the steps of a whole recurrent layer.
        is_mask: whether it stores bits instead of numbers, only where that lowers planned memory.
        is_quiet: whether most networks have near-misses of it, which say nothing new.
    """

    name: str
    anchors: frozenset[str]
    match: Match
    reads: frozenset[str] = frozenset()
    is_layer: bool = False
    is_mask: bool = False
    is_quiet: bool = False

    def may_match(self, graph: Graph, number: int) -> bool:
        """Whether the operators around a node allow the pattern there."""
        node = graph.nodes[number]
        if node.op not in self.anchors:
            return False
        return not self.reads or any(graph.nodes[entry.node].op in self.reads for entry in node.inputs)


@dataclass(frozen=True)
class View:
    """A graph, with the readers of each entry."""

    graph: Graph
    setting: Setting = NO_SETTING

    @cached_property
    def readers(self) -> Mapping[Entry, tuple[int, ...]]:
        """Returns the nodes that read an entry; -1 stands for the graph's heads."""
        numbers_of: dict[Entry, list[int]] = {}
        for number, node in enumerate(self.graph.nodes):
            for entry in node.inputs:
                numbers_of.setdefault(plain(entry), []).append(number)
        for head in self.graph.heads:
            numbers_of.setdefault(plain(head), []).append(-1)
        return {entry: tuple(numbers) for entry, numbers in numbers_of.items()}

    def result(self, pattern: Pattern, number: int) -> Fusion | str | None:
        """The result of a pattern at a node, which is matched once: layers ask again for each of their cells."""
        site = (pattern.match, number)
        if site not in self._matches:
            self._matches[site] = pattern.match(self, number)
        return self._matches[site]

    @cached_property
    def _matches(self) -> dict[tuple[Match, int], Fusion | str | None]:
        return {}

    @cached_property
    def has_control_deps(self) -> frozenset[int]:
        """Nodes at either end of a control dependency."""
        return frozenset(number for at, node in enumerate(self.graph.nodes) for number in (*node.control_deps,
                         *([at] if node.control_deps else [])))  # fmt: skip

    def shape_known_too_late(self, entry: Entry) -> str:
        """Why a fused operator cannot infer its shapes from this entry alone; empty where it can.

        An operator of an extension library has to know the shapes when MXNet infers them for the first time.
        """
        return (
            f"the shape of {self.node(entry).name!r} is known too late"
            if entry.node in self._shapes_known_too_late
            else ""
        )

    @cached_property
    def _shapes_known_too_late(self) -> frozenset[int]:
        """Begin states, whose batch size MXNet infers from their readers, and nodes computed from them alone."""
        late: set[int] = set()
        for number, node in enumerate(self.graph.nodes):
            unknown = [entry.node in late for entry in node.inputs]
            if _is_open(node) or (all(unknown) if node.op in _ALIKE and unknown else any(unknown)):
                late.add(number)
        return frozenset(late)

    def node(self, entry: Entry) -> Node:
        return self.graph.nodes[entry.node]

    def inputs(self, entry: Entry, ops: Iterable[str]) -> tuple[Entry, ...] | None:
        """The inputs of the node that computes an entry as its first output, if it is one of these operators."""
        node = self.node(entry)
        return node.inputs if node.op in ops and entry.index == 0 else None

    def activated(self, entry: Entry, activation: str) -> Entry | None:
        """The input of the tanh, sigmoid, relu or softrelu that computes this entry; None where none does."""
        node = self.node(entry)
        named = node.op == "Activation" and node.attrs.get("act_type") == activation
        return node.inputs[0] if named or node.op in _ACTIVATIONS[activation] else None

    def part(self, entry: Entry) -> Part | None:
        """The part of another entry that this entry is; None where it is none."""
        node = self.node(entry)
        if node.op not in ("SliceChannel", "_split_v2") or node.attrs.get("axis", "1") not in ("1", "-1"):
            return None
        if is_true(node.attrs, "squeeze_axis"):
            return None
        count = int(node.attrs.get("num_outputs" if node.op == "SliceChannel" else "sections", "0"))
        return Part(node.inputs[0], entry.index, count, entry.node) if count > 1 else None

    def is_constant(self, entry: Entry) -> bool:
        """Whether no gradient goes through an entry, since all ways from it up to trained variables are blocked."""
        nodes = self.graph.nodes

        def above(number: int) -> list[int]:
            return [source.node for source in nodes[number].inputs if nodes[number].op not in _BLOCKING]

        reached = (nodes[number] for number in walk([entry.node], above))
        return all(not node.is_variable or node.name in self.setting.untrained for node in reached)

    def read_outside(self, replaced: frozenset[int], outputs: Iterable[Entry]) -> str:
        """The name of a replaced node that nodes outside depend on other than by ``outputs``; empty without one."""
        read_later = set(outputs)
        for number in sorted(replaced):
            if number in self.has_control_deps:
                return self.graph.nodes[number].name
            for index in range(max(1, self.graph.num_outputs(number))):
                entry = Entry(number, index)
                if entry not in read_later and not replaced.issuperset(self.readers.get(entry, ())):
                    return self.graph.nodes[number].name
        return ""


def _is_open(node: Node) -> bool:
    """Whether a node without inputs leaves its shape, or an axis of it, to be inferred."""
    if node.is_variable or node.inputs:
        return False
    sizes = [size.strip() for size in node.attrs.get("shape", "1").strip("()[]").split(",")]
    return not sizes[0] or "0" in sizes or "-1" in sizes or is_true(node.attrs, "infer_range")


def adds_otherwise(attrs: Mapping[str, str]) -> bool:
    """Whether a sum of ``mx.np`` changes the type, or begins with another number than 0."""
    return any(attrs.get(name, "None") not in ("None", "") for name in ("dtype", "initial"))


def pairs(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Yields two operands in both orders."""
    left, right = entries
    yield left, right
    yield right, left


def split_attrs(axis: int, count: int) -> dict[str, str]:
    """The attributes of a SliceChannel along an axis, which is gone afterwards."""
    return {"num_outputs": str(count), "axis": str(axis), "squeeze_axis": "True"}


def order_attrs(places: Sequence[int]) -> dict[str, str]:
    """The attribute of a cell whose gates stand at these places: none where they are in the order of the kernel."""
    number = list(permutations(range(len(places)))).index(tuple(places))
    return {"order": str(number)} if number else {}


# A state of a gated cell as a mix of two others, in all the ways in which programs write it.

_SUB = frozenset({"elemwise_sub", "_npi_subtract", "broadcast_sub"})
_ONES = frozenset({"ones_like", "_ones", "_npi_ones"})
_ONE_MINUS = frozenset({"_rminus_scalar", "_npi_rsubtract_scalar"})


class Mix(NamedTuple):
    """gate * weighed + (1 - gate) * rest; ``nodes`` compute it from these three."""

    gate: Entry
    weighed: Entry
    rest: Entry
    nodes: frozenset[int]


def sums(view: View, entry: Entry) -> Iterator[Mix]:
    """The ways to read an entry as the sum of two products, one with a gate and one with 1 - gate."""
    terms = view.inputs(entry, ADD)
    for by_rest, by_gate in pairs(terms) if terms else ():
        rest_operands, gate_operands = view.inputs(by_rest, MUL), view.inputs(by_gate, MUL)
        if rest_operands is None or gate_operands is None:
            continue
        for one_minus, rest in pairs(rest_operands):
            for gate, weighed in pairs(gate_operands):
                nodes = _one_minus(view, one_minus, gate)
                if nodes:
                    yield Mix(gate, weighed, rest, nodes | {entry.node, by_rest.node, by_gate.node})


def steps(view: View, entry: Entry) -> Iterator[Mix]:
    """The ways to read an entry as rest + gate * (weighed - rest)."""
    terms = view.inputs(entry, ADD)
    for rest, step in pairs(terms) if terms else ():
        operands = view.inputs(step, MUL)
        for gate, difference in pairs(operands) if operands else ():
            ends = view.inputs(difference, _SUB)
            if ends is not None and ends[1] == rest:
                yield Mix(gate, ends[0], rest, frozenset({entry.node, step.node, difference.node}))


def _one_minus(view: View, entry: Entry, gate: Entry) -> frozenset[int]:
    """The nodes that compute an entry as one minus a gate; none where the entry is anything else."""
    node = view.node(entry)
    if node.op in _ONE_MINUS and node.inputs[0] == gate and float(node.attrs.get("scalar", "0")) == 1:
        return frozenset({entry.node})
    if node.op in _SUB and node.inputs[1] == gate and view.node(node.inputs[0]).op in _ONES:
        return frozenset({entry.node, node.inputs[0].node})
    return frozenset()
