"""LSTM and GRU cells: of mx.rnn, of Gluon, of Sockeye, or written by hand."""

from __future__ import annotations

from itertools import chain
from typing import Iterator, Mapping, NamedTuple

from echo.ir.graph import Entry, Node, fused_node, walk
from echo.passes.patterns.graph_view import (
    ACTIVATED,
    ADD,
    MUL,
    Fusion,
    Mix,
    Part,
    Pattern,
    View,
    local,
    order_attrs,
    pairs,
    plain,
    steps,
    sums,
)

# The non-linear parts of a GRU cell whose reset gate stands in front of the product with the state.

_MIX = "gru_mix"  # the operator after the product


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
    One operator computes sigmoid(r) h and u, another h'. They stash r, z, c and h: the rest is recomputed.
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
    mix = fused_node(_MIX, name, (cell.before, local(at, 1), cell.candidate))
    return Fusion(
        pattern=GRU_RESET.name,
        anchor=number,
        nodes=(*gates.nodes, front, mix),
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
    nodes = view.graph.nodes
    return number in walk([entry.node], lambda at: [e.node for e in nodes[at].inputs if e.node >= number])


def _gates(view: View, cell: _Cell, name: str) -> _Gates:
    """The array whose halves the gates are; where they are none, they are put together."""
    reset, update = view.part(cell.reset), view.part(cell.update)
    if reset and update and reset.source == update.source and {reset[1:3], update[1:3]} == {(0, 2), (1, 2)}:
        attrs = order_attrs((reset.number, update.number))
        return _Gates(reset.source, (), attrs, {reset.source: "B,2H"}, frozenset({reset.node, update.node}))
    node = Node("Concat", f"{name}_echo_gates", (cell.reset, cell.update), attrs={"dim": "1", "num_args": "2"})
    return _Gates(local(0), (node,), {}, {cell.reset: "B,H", cell.update: "B,H"}, frozenset())


GRU_RESET = Pattern("gru_reset", ADD, match_gru_reset, reads=MUL)


# The non-linear block of an LSTM cell: of mx.rnn, of Gluon, of Sockeye, or written by hand.

_LSTM_GATES = ("input", "forget", "transform", "output")


class _Block(NamedTuple):
    """The inputs of the gates' activations in the order of `_LSTM_GATES`, the states, and the nodes of a cell.

    ``norm`` is the layer norm of the new state, if there is one.
    """

    gates: tuple[Entry, Entry, Entry, Entry]
    before: Entry
    after: Entry
    nodes: frozenset[int]
    norm: Node | None = None


def match_lstm_cell(view: View, number: int) -> Fusion | str | None:
    """The cell whose new hidden state this node computes: a fusion, why there is none, or None where there is no cell.

    h = sigmoid(o) tanh(c'), c' = sigmoid(f) c + sigmoid(i) tanh(g), where i, f, g, o are the quarters of one array, in
    any order. The fused operator stashes only that array and c: the gates are recomputed in backward (EcoRNN,
    MICRO'18, section 5). There may be a layer norm of c' before its tanh (Ba et al., 2016).
    """
    hidden = Entry(number)
    block = _block(view, hidden)
    if block is None or isinstance(block, str):
        return block
    parts = [view.part(gate) for gate in block.gates]
    reason = _block_blocker(view, block, parts)
    if reason:
        return reason
    first, order = parts[0], order_attrs([part.number for part in parts if part])
    assert first is not None
    replaced = block.nodes | {part.node for part in parts if part is not None}
    outside = view.read_outside(replaced, (hidden, block.after))
    if outside:
        return f"{outside!r}, inside of the cell, is read from outside"
    name = view.graph.nodes[number].name
    shapes = {first.source: "B,4H", block.before: "B,H"}
    fused, label = fused_node(LSTM_CELL.name, name, (first.source, block.before), order), "the gates of an LSTM cell"
    if block.norm is not None:
        vectors = block.norm.inputs[1:]
        eps = {"eps": block.norm.attrs.get("eps", "1e-05"), **order}
        fused = fused_node("lstm_norm_cell", name, (first.source, block.before, *vectors), eps)
        shapes.update(dict.fromkeys(vectors, "H"))
        label += " with a layer norm of its state"
    return Fusion(
        pattern=LSTM_CELL.name,
        anchor=number,
        nodes=(fused,),
        outputs={hidden: local(0, 0), block.after: local(0, 1)},
        replaced=replaced,
        shapes=shapes,
        label=label,
    )


def _block(view: View, hidden: Entry) -> _Block | str | None:
    operands = view.inputs(hidden, MUL)
    for left, right in pairs(operands) if operands else ():
        output, after = view.activated(left, "sigmoid"), view.activated(right, "tanh")
        if output is None or after is None:
            continue
        inner = frozenset({hidden.node, left.node, right.node, after.node})
        norm = view.node(after) if view.inputs(after, ("LayerNorm",)) else None
        if norm is not None and norm.attrs.get("axis", "-1") in ("-1", "1"):
            after = norm.inputs[0]
            inner |= {after.node}
        terms = view.inputs(after, ADD)
        if terms is None:
            return None
        blocks = [block._replace(norm=norm) for block in _states(view, terms, output, after, inner)]
        # a state may itself be a tanh: where the terms match in two ways, the gates of one array decide
        whole = [block for block in blocks if _are_quarters([view.part(gate) for gate in block.gates])]
        if whole or blocks:
            return (whole or blocks)[0]
        return _with_dropout(view, terms)
    return None


def _states(
    view: View, terms: tuple[Entry, ...], output: Entry, after: Entry, inner: frozenset[int]
) -> Iterator[_Block]:
    for kept, new in pairs(terms):
        old_operands, new_operands = view.inputs(kept, MUL), view.inputs(new, MUL)
        if old_operands is None or new_operands is None:
            continue
        for forget, before in pairs(old_operands):
            for gate, transform in pairs(new_operands):
                f, i = view.activated(forget, "sigmoid"), view.activated(gate, "sigmoid")
                g = view.activated(transform, "tanh")
                if f is not None and i is not None and g is not None:
                    nodes = inner | {kept.node, new.node, forget.node, gate.node, transform.node}
                    yield _Block((i, f, g, output), before, after, nodes)


def _with_dropout(view: View, terms: tuple[Entry, ...]) -> str | None:
    products = [view.inputs(term, MUL) for term in terms]
    factors = [factor for operands in products for factor in operands or ()]
    if any(view.node(factor).op == "Dropout" for factor in factors):
        return "an LSTM cell with recurrent dropout, which needs a mask inside of the cell"
    sigmoids = sum(view.activated(factor, "sigmoid") is not None for factor in factors)
    return "an LSTM cell with other activations than sigmoid and tanh" if sigmoids else None


def _are_quarters(parts: list[Part | None]) -> bool:
    sources = {part.source for part in parts if part}
    return len(sources) == 1 and {(part.number, part.of) for part in parts if part} == {(k, 4) for k in range(4)}


def _block_blocker(view: View, block: _Block, parts: list[Part | None]) -> str:
    missing = [name for name, part in zip(_LSTM_GATES, parts) if part is None]
    if missing:
        gate = block.gates[_LSTM_GATES.index(missing[0])]
        source = view.node(gate)
        if source.op == "LayerNorm":
            return f"an LSTM cell with layer norm of each gate ({source.name!r})"
        return f"an LSTM cell whose {missing[0]} gate is no quarter of one product: {source.op} ({source.name!r})"
    if len({part.source for part in parts if part}) > 1:
        return "an LSTM cell whose gates come from several arrays"
    if not _are_quarters(parts):
        numbers, counts = [part.number for part in parts if part], [part.of for part in parts if part]
        return (f"an LSTM cell whose gates are not the quarters of one array: {', '.join(_LSTM_GATES)} are the parts "
                f"{numbers} of {counts}")  # fmt: skip
    return ""


LSTM_CELL = Pattern("lstm_cell", MUL, match_lstm_cell, reads=ACTIVATED)


# The non-linear block of a GRU cell: of mx.rnn, of Gluon, or written by hand.

_GRU_GATES = "reset, update, candidate"


class _Thirds(NamedTuple):
    """The arrays of which the gates are thirds, from the input and from the state; where the gates stand; the nodes."""

    sources: tuple[Entry, Entry]
    places: tuple[int, ...]
    nodes: frozenset[int]


def match_gru_cell(view: View, number: int) -> Fusion | str | None:
    """The cell whose new state this node computes: a fusion, why there is none, or None where there is no cell.

    h' = (1 - z) n + z h, z = sigmoid(x_z + s_z), n = tanh(x_n + sigmoid(x_r + s_r) s_n), where r, z, n are the thirds
    of x, which comes from the input, and of s, from the state, in any order that both have. Of cells whose reset gate
    stands in front of the product `gru_reset` says more.
    """
    mix = _mix(view, Entry(number))
    if mix is None:
        return None
    thirds = _thirds(view, mix)
    if isinstance(thirds, str):
        return thirds if view.result(GRU_RESET, number) is None else None
    (x, s), places, inner = thirds
    replaced = mix.nodes | inner
    outside = view.read_outside(replaced, (Entry(number),))
    if outside:
        return f"{outside!r}, inside of the cell, is read from outside"
    name = view.graph.nodes[number].name
    return Fusion(
        pattern=GRU_CELL.name,
        anchor=number,
        nodes=(fused_node(GRU_CELL.name, name, (x, s, mix.weighed), order_attrs(places)),),
        outputs={Entry(number): local(0)},
        replaced=replaced,
        shapes={x: "B,3H", s: "B,3H", mix.weighed: "B,H"},
        label="the gates of a GRU cell",
    )


def _mix(view: View, entry: Entry) -> Mix | None:
    """(1 - z) n + z h, z a sigmoid and n a tanh, with the nodes of both."""
    for mix in sums(view, entry):
        if view.activated(mix.rest, "tanh") and view.activated(mix.gate, "sigmoid"):
            return mix._replace(nodes=mix.nodes | {mix.rest.node, mix.gate.node})
    return None


def _thirds(view: View, mix: Mix) -> _Thirds | str:
    z, n = view.activated(mix.gate, "sigmoid"), view.activated(mix.rest, "tanh")
    assert z is not None
    assert n is not None
    z_terms, n_terms = view.inputs(z, ADD), view.inputs(n, ADD)
    if z_terms is None or n_terms is None:
        return "a GRU cell whose gates are no sums of a product of the input and one of the state"
    for x_n, product in pairs(n_terms):
        operands = view.inputs(product, MUL)
        for reset, s_n in pairs(operands) if operands else ():
            r = view.activated(reset, "sigmoid")
            r_terms = view.inputs(r, ADD) if r is not None else None
            if r is None or r_terms is None:
                continue
            inner = frozenset({z.node, n.node, product.node, reset.node, r.node})
            return _sources(view, (r_terms, z_terms, (x_n, s_n)), inner)
    return "a GRU cell whose reset gate is not applied to the product of the state"


def _sources(view: View, gates: tuple[tuple[Entry, ...], ...], inner: frozenset[int]) -> _Thirds | str:
    """The two arrays of which all three gates are thirds: one from the input, one from the state."""
    x_n, s_n = view.part(gates[2][0]), view.part(gates[2][1])
    if x_n is None or s_n is None:
        return "a GRU cell whose gates are no thirds of one product"
    places = []
    for terms in gates:
        parts = [view.part(term) for term in terms]
        place = parts[0].number if parts[0] else -1
        found = {(part.source, part.number, part.of) if part else None for part in parts}
        if found != {(x_n.source, place, 3), (s_n.source, place, 3)}:
            return f"a GRU cell with gates in two orders, or from several arrays: {view.node(terms[0]).name!r}"
        places.append(place)
        inner |= {part.node for part in parts if part}
    if sorted(places) != [0, 1, 2]:
        return f"a GRU cell whose gates are not the thirds of one product: {_GRU_GATES} are the parts {places}"
    return _Thirds((x_n.source, s_n.source), tuple(places), inner)


GRU_CELL = Pattern("gru_cell", ADD, match_gru_cell, reads=MUL)
