"""A whole LSTM layer: the steps of an unrolled cell whose inputs do not depend on its states."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from echo.ir.attributes import is_true
from echo.ir.fused_operators import fused_node
from echo.ir.graph import Entry, Node
from echo.passes.patterns import lstm_cell
from echo.passes.patterns.graph_view import ADD, Fusion, View, local, pairs, split_attrs

NAME = "lstm_layer"
_FEWEST = 2  # steps: from one step alone, the product with the state cannot be told from that with the input


class _Weights(NamedTuple):
    """Weight and bias of the product with the input, and of the product with the state."""

    wi: Entry
    bi: Entry
    wh: Entry
    bh: Entry


class _Step(NamedTuple):
    """One step: its input, the states before and after it, and the user's nodes that compute it."""

    x: Entry
    before: tuple[Entry, Entry]
    after: tuple[Entry, Entry]
    nodes: frozenset[int]


def match(view: View, number: int) -> Fusion | str | None:
    """The layer whose last hidden state this node computes: a fusion, why there is none, or None.

    The products with the inputs of all steps become one (cuDNN; EcoRNN, MICRO'18, section 2), and only the gates before
    their activations are stashed.
    """
    weights = _weights(view, number)
    if weights is None or _continues(view, Entry(number), weights):
        return None
    steps = _steps(view, number, weights)
    if len(steps) < _FEWEST or _feeds_back(view, steps):
        return None
    replaced = frozenset(node for step in steps for node in step.nodes)
    hidden = [step.after[0] for step in steps]
    outside = view.read_outside(replaced, (*hidden, steps[-1].after[1]))
    if outside:
        return f"{outside!r}, inside of the LSTM layer, is read from outside"
    return _fusion(view, number, steps, weights, replaced)


def layer_node(name: str, x: Entry, weights: Sequence[Entry], states: Sequence[Entry], reverse: bool) -> Node:
    """The fused layer: x [T,B,I], wi [4H,I], bi [4H], wh [4H,H], bh [4H], states [B,H]; y [T,B,H], hT, cT [B,H]."""
    return fused_node(NAME, name, (x, *weights, *states), {"reverse": "1" if reverse else "0"})


def _fusion(view: View, number: int, steps: list[_Step], weights: _Weights, replaced: frozenset[int]) -> Fusion:
    name = view.graph.nodes[number].name
    reverse = _is_reversed(view, [step.x for step in steps])
    ordered = steps[::-1] if reverse else steps
    count = len(steps)
    stack = Node("stack", name + "_echo_steps", tuple(step.x for step in ordered),
                 attrs={"axis": "0", "num_args": str(count)})  # fmt: skip
    layer = layer_node(name, local(0), weights, steps[0].before, reverse)
    split = Node("SliceChannel", name + "_echo_split", (local(1, 0),), attrs=split_attrs(0, count))
    outputs = {step.after[0]: local(2, index) for index, step in enumerate(ordered)}
    h0, c0 = steps[0].before
    shapes = {steps[0].x: "B,I", h0: "B,H", c0: "B,H", weights.wi: "4H,I", weights.bi: "4H", weights.wh: "4H,H",
              weights.bh: "4H", **{step.x: "B,I" for step in steps}}  # fmt: skip
    return Fusion(
        pattern=NAME,
        anchor=number,
        nodes=(stack, layer, split),
        outputs={**outputs, steps[-1].after[1]: local(1, 2)},
        replaced=replaced,
        shapes=shapes,
        label=f"an LSTM layer of {count} steps",
    )


def _weights(view: View, number: int) -> _Weights | None:
    """The weights of a step that is not the first, from the two products whose sum gives its gates."""
    cell = _plain_cell(view, Entry(number))
    if cell is None:
        return None
    pre, before = cell.nodes[0].inputs
    terms = view.inputs(pre, ADD)
    for of_input, of_state in pairs(terms) if terms else ():
        i2h, h2h = _product(view, of_input), _product(view, of_state)
        if i2h is None or h2h is None:
            continue
        previous = _plain_cell(view, h2h[0])
        if previous is not None and set(previous.outputs) == {h2h[0], before}:
            return _Weights(*i2h[1:], *h2h[1:])
    return None


def _plain_cell(view: View, hidden: Entry) -> Fusion | None:
    """The cell of this hidden state, if it has no layer norm."""
    cell = lstm_cell.match(view, hidden.node) if hidden.index == 0 else None
    return cell if isinstance(cell, Fusion) and len(cell.nodes[0].inputs) == 2 else None


def _product(view: View, entry: Entry) -> tuple[Entry, Entry, Entry] | None:
    """Input, weight and bias of a fully connected layer."""
    node = view.node(entry)
    if node.op != "FullyConnected" or is_true(node.attrs, "no_bias"):
        return None
    x, weight, bias = node.inputs
    return x, weight, bias


def _continues(view: View, hidden: Entry, weights: _Weights) -> bool:
    """Whether another step reads this state."""
    readers = (view.graph.nodes[number] for number in view.readers.get(hidden, ()) if number >= 0)
    return any(node.op == "FullyConnected" and node.inputs[1] == weights.wh for node in readers)


def _steps(view: View, number: int, weights: _Weights) -> list[_Step]:
    """The steps from the first to that of this node; none where one is no cell, or has other weights."""
    steps: list[_Step] = []
    hidden = Entry(number)
    while True:
        step = _step(view, hidden, weights)
        if step is None or (steps and step.after != steps[-1].before):
            break
        steps.append(step)
        hidden = step.before[0]
    return steps[::-1]


def _step(view: View, hidden: Entry, weights: _Weights) -> _Step | None:
    cell = _plain_cell(view, hidden)
    if cell is None:
        return None
    pre, before = cell.nodes[0].inputs
    terms = view.inputs(pre, ADD)
    for of_input, of_state in pairs(terms) if terms else ():
        i2h, h2h = _product(view, of_input), _product(view, of_state)
        if i2h and h2h and _Weights(*i2h[1:], *h2h[1:]) == weights:
            after = next(entry for entry in cell.outputs if entry != hidden)
            nodes = cell.replaced | {pre.node, of_input.node, of_state.node}
            return _Step(i2h[0], (h2h[0], before), (hidden, after), frozenset(nodes))
    return None


def _feeds_back(view: View, steps: list[_Step]) -> bool:
    """Whether the input of a step depends on a state, as in a decoder whose input is the last step's attention."""
    inside = {node for step in steps for node in step.nodes}
    first = min(inside)
    seen: set[int] = set()
    below = [step.x.node for step in steps]
    while below:
        number = below.pop()
        if number in inside:
            return True
        if number < first or number in seen:
            continue
        seen.add(number)
        node = view.graph.nodes[number]
        below += [entry.node for entry in node.inputs] + list(node.control_deps)
    return False


def _is_reversed(view: View, inputs: list[Entry]) -> bool:
    """Whether the inputs are the parts of one array from the last to the first."""
    same = len({entry.node for entry in inputs}) == 1
    return same and [entry.index for entry in inputs] == list(range(len(inputs)))[::-1]
