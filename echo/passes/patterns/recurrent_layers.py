"""Whole LSTM, GRU and vanilla RNN layers: the steps of an unrolled cell."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Callable, Mapping, NamedTuple, Sequence

from echo.ir.graph import Entry, Node, fused_node, walk
from echo.ir.op_spec import is_true
from echo.passes.patterns.graph_view import ACTIVATED, ADD, MUL, Fusion, Pattern, View, local, pairs, split_attrs
from echo.passes.patterns.recurrent_cells import GRU_CELL, LSTM_CELL

_FEWEST = 2  # steps: from one step alone, the product with the state cannot be told from that with the input


class Cell(NamedTuple):
    """The nodes of a recurrent cell that compute a hidden state from the products with the input and the state.

    Attributes:
        products: what may be the product with the input and that with the state.
        before, after: the states alongside the hidden one, before and after the step.
        nodes: the user's nodes that compute it, without the products.
        hidden: the hidden state before the step, where it is read alongside the product.
        attrs: attributes of the layer's operator, the same for all of its steps.
    """

    products: tuple[tuple[Entry, Entry], ...]
    before: tuple[Entry, ...]
    after: tuple[Entry, ...]
    nodes: frozenset[int]
    hidden: Entry | None = None
    attrs: Mapping[str, str] = {}


@dataclass(frozen=True)
class Kind:
    """A kind of layer: the kernel, how many gates a unit has, what it is called, and the cell of a hidden state.

    ``attrs`` are those of its operator.
    """

    name: str
    gates: int
    label: str
    cell: Callable[[View, Entry], Cell | None]
    attrs: Mapping[str, str] = field(default_factory=dict)


class _LayerWeights(NamedTuple):
    """Weight and bias of the product with the input, and of the product with the state."""

    wi: Entry
    bi: Entry
    wh: Entry
    bh: Entry


class _LayerStep(NamedTuple):
    """One time step: its input, the states before and after it, the nodes that compute it, and the `Cell.attrs`."""

    x: Entry
    before: tuple[Entry, ...]
    after: tuple[Entry, ...]
    nodes: frozenset[int]
    attrs: Mapping[str, str]


def matched(view: View, number: int, kind: Kind) -> Fusion | str | None:
    """The layer whose last hidden state this node computes: a fusion, why there is none, or None.

    The products with the inputs of all steps become one (cuDNN; EcoRNN, MICRO'18, section 2), and of the gates no more
    is stashed than the gradient cannot recompute at next to no cost.
    """
    weights = _weights(view, number, kind)
    if weights is None or _continues(view, Entry(number), weights):
        return None
    steps = _steps(view, number, weights, kind)
    if len(steps) < _FEWEST or _feeds_back(view, steps):
        return None
    replaced = frozenset(node for step in steps for node in step.nodes)
    hidden = [step.after[0] for step in steps]
    outside = view.read_outside(replaced, (*hidden, *steps[-1].after[1:]))
    if outside:
        return f"{outside!r}, inside of the {kind.label} layer, is read from outside"
    return _fusion(view, number, steps, weights, kind)


def layer_node(
    kernel: str, name: str, x: Entry, weights: Sequence[Entry], states: Sequence[Entry], reverse: bool,
    attrs: Mapping[str, str] = {},
) -> Node:  # fmt: skip
    """The fused layer: x [T,B,I], wi [GH,I], bi [GH], wh [GH,H], bh [GH], states [B,H]; y [T,B,H], last states."""
    return fused_node(kernel, name, (x, *weights, *states), {**attrs, "reverse": "1" if reverse else "0"})


def _fusion(view: View, number: int, steps: list[_LayerStep], weights: _LayerWeights, kind: Kind) -> Fusion:
    name = view.graph.nodes[number].name
    reverse = _is_reversed([step.x for step in steps])
    ordered = steps[::-1] if reverse else steps
    count, first = len(steps), steps[0].before
    stack = Node("stack", name + "_echo_steps", tuple(step.x for step in ordered),
                 attrs={"axis": "0", "num_args": str(count)})  # fmt: skip
    layer = layer_node(kind.name, name, local(0), weights, first, reverse, {**kind.attrs, **steps[0].attrs})
    split = Node("SliceChannel", name + "_echo_split", (local(1, 0),), attrs=split_attrs(0, count))
    outputs = {step.after[0]: local(2, index) for index, step in enumerate(ordered)}
    rows = f"{kind.gates}H" if kind.gates > 1 else "H"
    shapes = {**dict.fromkeys((step.x for step in steps), "B,I"), **dict.fromkeys(first, "B,H"),
              weights.wi: f"{rows},I", weights.bi: rows, weights.wh: f"{rows},H", weights.bh: rows}  # fmt: skip
    return Fusion(
        pattern=kind.name,
        anchor=number,
        nodes=(stack, layer, split),
        outputs={**outputs, **{last: local(1, 2) for last in steps[-1].after[1:]}},
        replaced=frozenset(node for step in steps for node in step.nodes),
        shapes=shapes,
        label=f"{kind.label} layer of {count} steps",
    )


def _weights(view: View, number: int, kind: Kind) -> _LayerWeights | None:
    """The weights of a step that is not the first, of which the one before has the same."""
    cell = kind.cell(view, Entry(number))
    for of_input, of_state in cell.products if cell is not None else ():
        i2h, h2h = product(view, of_input), product(view, of_state)
        if i2h is None or h2h is None:
            continue
        weights = _LayerWeights(*i2h[1:], *h2h[1:])
        previous = _step(view, h2h[0], weights, kind)
        if previous is not None and cell is not None and previous.after == (h2h[0], *cell.before):
            return weights
    return None


def product(view: View, entry: Entry) -> tuple[Entry, Entry, Entry] | None:
    """Input, weight and bias of a fully connected layer."""
    node = view.node(entry)
    if node.op != "FullyConnected" or is_true(node.attrs, "no_bias"):
        return None
    x, weight, bias = node.inputs
    return x, weight, bias


def _continues(view: View, hidden: Entry, weights: _LayerWeights) -> bool:
    """Whether another step reads this state."""
    readers = (view.graph.nodes[number] for number in view.readers.get(hidden, ()) if number >= 0)
    return any(node.op == "FullyConnected" and node.inputs[1] == weights.wh for node in readers)


def _steps(view: View, number: int, weights: _LayerWeights, kind: Kind) -> list[_LayerStep]:
    """The steps from the first to that of this node; none where one is no cell, or has other weights."""
    steps: list[_LayerStep] = []
    hidden = Entry(number)
    while True:
        step = _step(view, hidden, weights, kind)
        if step is None or (steps and (step.after, step.attrs) != (steps[-1].before, steps[-1].attrs)):
            break
        steps.append(step)
        hidden = step.before[0]
    return steps[::-1]


def _step(view: View, hidden: Entry, weights: _LayerWeights, kind: Kind) -> _LayerStep | None:
    cell = kind.cell(view, hidden)
    for of_input, of_state in cell.products if cell is not None else ():
        i2h, h2h = product(view, of_input), product(view, of_state)
        if cell is None or i2h is None or h2h is None or _LayerWeights(*i2h[1:], *h2h[1:]) != weights:
            continue
        if cell.hidden in (None, h2h[0]):
            nodes = cell.nodes | {of_input.node, of_state.node}
            return _LayerStep(i2h[0], (h2h[0], *cell.before), (hidden, *cell.after), nodes, cell.attrs)
    return None


def _feeds_back(view: View, steps: list[_LayerStep]) -> bool:
    """Whether the input of a step depends on a state, as in a decoder whose input is the last step's attention."""
    inside = {node for step in steps for node in step.nodes}
    first = min(inside)

    def below(number: int) -> list[int]:
        node = view.graph.nodes[number]
        return [read for read in (*(entry.node for entry in node.inputs), *node.control_deps) if read >= first]

    return not inside.isdisjoint(walk((step.x.node for step in steps), below))


def _is_reversed(inputs: list[Entry]) -> bool:
    """Whether the inputs come from the last to the first: parts of one array, or nodes in the order of the graph.

    Two layers that read the same inputs in opposite orders then read one array.
    """
    if len({entry.node for entry in inputs}) == 1:
        return [entry.index for entry in inputs] == list(range(len(inputs)))[::-1]
    numbers = [entry.node for entry in inputs]
    return all(number > after for number, after in zip(numbers, numbers[1:]))


def _lstm_step(view: View, hidden: Entry) -> Cell | None:
    """The cell of this hidden state, if it has no layer norm."""
    cell = view.result(LSTM_CELL, hidden.node) if hidden.index == 0 else None
    if not isinstance(cell, Fusion) or len(cell.nodes[0].inputs) != 2:
        return None
    fused = cell.nodes[0]
    pre, before = fused.inputs
    attrs = {"order": fused.attrs["order"]} if "order" in fused.attrs else {}
    terms = view.inputs(pre, ADD)
    after = tuple(entry for entry in cell.outputs if entry != hidden)
    return Cell(tuple(pairs(terms)), (before,), after, cell.replaced | {pre.node}, attrs=attrs) if terms else None


_LSTM = Kind("lstm_layer", 4, "an LSTM", _lstm_step)
LSTM_LAYER = Pattern("lstm_layer", MUL, partial(matched, kind=_LSTM), reads=ACTIVATED, is_layer=True)


def _gru_step(view: View, hidden: Entry) -> Cell | None:
    cell = view.result(GRU_CELL, hidden.node) if hidden.index == 0 else None
    if not isinstance(cell, Fusion) or "order" in cell.nodes[0].attrs:  # the layer's kernel knows one order only
        return None
    of_input, of_state, before = cell.nodes[0].inputs
    return Cell(((of_input, of_state),), (), (), cell.replaced, before)


_GRU = Kind("gru_layer", 3, "a GRU", _gru_step)
GRU_LAYER = Pattern("gru_layer", ADD, partial(matched, kind=_GRU), reads=MUL, is_layer=True)


ACTS: Mapping[str, str] = {"relu": "0", "tanh": "2"}  # as the kernel counts them


def match_rnn_layer(view: View, number: int) -> Fusion | str | None:
    """The layer whose last hidden state this node computes: a fusion, why there is none, or None."""
    activation = _activation(view, Entry(number))
    return matched(view, number, _KINDS[activation]) if activation else None


def _activation(view: View, hidden: Entry) -> str:
    return next((name for name in ACTS if hidden.index == 0 and view.activated(hidden, name) is not None), "")


def _rnn_step(view: View, hidden: Entry, activation: str) -> Cell | None:
    total = view.activated(hidden, activation) if hidden.index == 0 else None
    terms = view.inputs(total, ADD) if total is not None else None
    if total is None or terms is None:
        return None
    return Cell(tuple(pairs(terms)), (), (), frozenset({hidden.node, total.node}))


_KINDS = {
    name: Kind("rnn_layer", 1, "an RNN", partial(_rnn_step, activation=name), {"act": number})
    for name, number in ACTS.items()
}


RNN_LAYER = Pattern("rnn_layer", ACTIVATED, match_rnn_layer, reads=ADD, is_layer=True)
