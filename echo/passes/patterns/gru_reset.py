"""The non-linear parts of a GRU cell whose reset gate stands in front of the product with the state."""

from __future__ import annotations

from itertools import chain
from typing import Iterator, Mapping, NamedTuple

from echo.ir.graph import Entry, Node, fused_node
from echo.passes.patterns.graph_view import ADD, MUL, Fusion, Pattern, View, local, order_attrs, pairs, plain

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


_BEHIND = "gru_mix"  # the operator after the product


class _Cell(NamedTuple):
    """A cell: its gates in front of their sigmoids, and its candidate in front of its tanh.

    ``product`` is what the second product takes; ``keeps``: the update gate is the weight of the old state, ``before``.
    ``nodes`` compute the product and the new state.
    """

    reset: Entry
    update: Entry
    candidate: Entry
    before: Entry
    product: Entry
    keeps: bool
    nodes: frozenset[int]


class _Gates(NamedTuple):
    """The array of both gates: the new nodes that make it, its attributes, the shapes of what it is made of."""

    whole: Entry
    nodes: tuple[Node, ...]
    attrs: Mapping[str, str]
    shapes: Mapping[Entry, str]
    replaced: frozenset[int]


def match_gru_reset(view: View, number: int) -> Fusion | str | None:
    """The cell whose new state this node computes: a fusion, why there is none, or None where there is no cell.

    h' = (1 - u) h + u tanh(c), u = sigmoid(z) or 1 - sigmoid(z), c computed from sigmoid(r) h by whatever operators.
    One operator computes sigmoid(r) h and u, another h'. They stash r, z, c and h: the rest is computed again.
    """
    hidden = Entry(number)
    cell = next(_cells(view, hidden), None)
    if cell is None:
        return None
    if _reads(view, cell.update, cell.product.node):
        return "a GRU cell whose update gate depends on the state after its reset gate"
    name = view.graph.nodes[number].name
    gates = _gates(view, cell, name)
    replaced = cell.nodes | gates.replaced
    outside = view.read_outside(replaced, (cell.product, hidden))
    if outside:
        return f"{outside!r}, inside of the cell, is read from outside"
    attrs = {"keeps": str(int(cell.keeps)), **gates.attrs}
    front = fused_node(GRU_RESET.name, view.node(cell.product).name, (gates.whole, cell.before), attrs)
    at = len(gates.nodes)
    behind = fused_node(_BEHIND, name, (cell.before, local(at, 1), cell.candidate))
    return Fusion(
        pattern=GRU_RESET.name,
        anchor=number,
        nodes=(*gates.nodes, front, behind),
        outputs={cell.product: local(at, 0), hidden: local(at + 1)},
        replaced=replaced,
        shapes={**gates.shapes, cell.candidate: "B,H", cell.before: "B,H"},
        label="the gates of a GRU cell, the reset gate in front of its product",
    )


def _cells(view: View, hidden: Entry) -> Iterator[_Cell]:
    for mix in chain(sums(view, hidden), steps(view, hidden)):
        update = view.activated(mix.gate, "sigmoid")
        if update is None:
            continue
        for new, before, keeps in ((mix.weighed, mix.rest, False), (mix.rest, mix.weighed, True)):
            candidate = view.activated(new, "tanh")
            for product, gate in _products(view, before) if candidate is not None else ():
                reset = view.activated(gate, "sigmoid")
                if reset is not None and candidate is not None and _reads(view, candidate, product.node):
                    nodes = mix.nodes | {mix.gate.node, new.node, product.node, gate.node}
                    yield _Cell(reset, update, candidate, before, product, keeps, nodes)


def _products(view: View, state: Entry) -> Iterator[tuple[Entry, Entry]]:
    """The products of a state, element by element, each with its other factor."""
    for number in view.readers[plain(state)]:
        operands = view.inputs(Entry(number), MUL) if number >= 0 else None
        for factor, other in pairs(operands) if operands else ():
            if plain(other) == plain(state):
                yield Entry(number), factor


def _reads(view: View, entry: Entry, number: int) -> bool:
    """Whether an entry is computed from the outputs of a node."""
    seen, above = set(), [entry.node]
    while above:
        at = above.pop()
        if at == number:
            return True
        if at > number and at not in seen:
            seen.add(at)
            above += [source.node for source in view.graph.nodes[at].inputs]
    return False


def _gates(view: View, cell: _Cell, name: str) -> _Gates:
    """The array whose halves the gates are; where they are none, they are put together."""
    reset, update = view.part(cell.reset), view.part(cell.update)
    if reset and update and reset.source == update.source and {reset[1:3], update[1:3]} == {(0, 2), (1, 2)}:
        attrs = order_attrs((reset.number, update.number))
        return _Gates(reset.source, (), attrs, {reset.source: "B,2H"}, frozenset({reset.node, update.node}))
    node = Node("Concat", f"{name}_echo_gates", (cell.reset, cell.update), attrs={"dim": "1", "num_args": "2"})
    return _Gates(local(0), (node,), {}, {cell.reset: "B,H", cell.update: "B,H"}, frozenset())


GRU_RESET = Pattern("gru_reset", ADD, match_gru_reset, reads=MUL)
