"""A state of a gated cell as a mix of two others, in all the ways in which programs write it."""

from __future__ import annotations

from typing import Iterator, NamedTuple

from echo.ir.graph import Entry
from echo.passes.patterns.graph_view import ADD, MUL, View, pairs

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
