"""Other implementations of gradients in a training graph, as the native hook exchanges them.

This is what ``implementation.cc`` and ``late.cc`` in ``echo/native/hook/`` do to a graph that is bound; done here,
MXNet does not have to be asked for the same graph once more. It is tested against what MXNet binds.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import replace
from typing import Mapping, NamedTuple, Sequence

import mxnet as mx

from echo.errors import GraphError
from echo.estimators.planner import blocks
from echo.frontend.cached import accumulations
from echo.frontend.capture import training_graph
from echo.frontend.symbols import graph_of, infer_binding, symbol_from
from echo.ir.clones import CLONE_SUFFIX, in_execution_order
from echo.ir.gradient_rule import GradientRule, Read, Source
from echo.ir.graph import VARIABLE, Entry, Node
from echo.ir.split_gradients import SUM
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode

_BACKWARD = "_backward_"


def implemented(training: TrainingGraph, rules: Mapping[int, GradientRule]) -> TrainingGraph:
    """The training graph in which gradients of the user's nodes (by number) follow these rules.

    It is the graph as it was where MXNet would then add up gradients in another way.
    """
    nodes = list(training.nodes)
    late = []
    for number, node in training.operators():
        for forward in () if node.forward else node.control_deps:
            one = rules.get(training.nodes[forward].user)  # type: ignore[arg-type]
            if one is None or one.before != nodes[number].op:
                continue
            if one.splits:
                late.append(_Parted(number, forward, one))
            else:
                nodes[number] = _exchanged(nodes[number], forward, one)
    found = replace(training, nodes=tuple(nodes), implementations=dict(rules))
    if late:
        found = _parted(found, late)
    return found if accumulations(found, blocks(found).chunk) == training.accumulations else training


class _Parted(NamedTuple):
    """A gradient node that gets a second node beside it, for its first output."""

    number: int
    forward: int
    wanted: GradientRule


def _parted(training: TrainingGraph, late: Sequence[_Parted]) -> TrainingGraph:
    readers: dict[Entry, list[int]] = defaultdict(list)
    for reader, node in enumerate(training.nodes):
        for entry in node.inputs:
            readers[Entry(entry.node, entry.index)].append(reader)
    for entry in training.outputs:
        readers[Entry(entry.node, entry.index)].append(-1)
    nodes = list(training.nodes)
    for number, forward, wanted in late:
        node, first = nodes[number], Entry(number)
        total = readers[first][0] if len(readers[first]) == 1 else -1
        last = _last_term(nodes, total, number, len(training.nodes)) if total >= 0 else None
        if last is None:
            continue
        read, before = _read(node, forward, wanted, last), nodes[last.node]
        terms = tuple(Entry(len(nodes)) if entry[:2] == first[:2] else entry for entry in nodes[total].inputs)
        nodes.append(node.having(name=node.name + CLONE_SUFFIX, op=wanted.after, inputs=read, external=frozenset()))
        nodes[number] = node.having(untouched=node.untouched | {0})
        nodes[total] = nodes[total].having(inputs=terms)
        nodes[last.node] = before.having(control_deps=(*before.control_deps, number))
    ordered = in_execution_order(nodes, training)
    return replace(training, nodes=ordered.nodes, outputs=ordered.outputs)


def _last_term(nodes: Sequence[TrainingNode], total: int, number: int, end: int) -> Entry | None:
    """The term of a sum that is computed last, and later than node ``number``, by the same operator."""
    offered = [
        Entry(entry.node) for entry in nodes[total].inputs
        if entry.index == 0 and number < entry.node < end and nodes[entry.node].op == nodes[number].op
    ]  # fmt: skip
    return max(offered, default=None) if nodes[total].op == SUM else None


def _read(node: TrainingNode, forward: int, wanted: GradientRule, term: Entry | None = None) -> tuple[Entry, ...]:
    def entry(read: Read) -> Entry:
        if read.source is Source.SUM and term is not None:
            return term
        return Entry(forward, read.position) if read.source is Source.FORWARD else node.inputs[read.position]

    return tuple(map(entry, wanted.inputs))


def _exchanged(node: TrainingNode, forward: int, wanted: GradientRule) -> TrainingNode:
    read = _read(node, forward, wanted)
    if wanted.after == node.op:
        return node.having(inputs=read)
    inplace, ignored = _facts(wanted.after)
    return node.having(op=wanted.after, inputs=read, inplace=inplace, ignored=ignored)


@functools.lru_cache(maxsize=None)
def _facts(op: str) -> tuple[tuple[tuple[int, int, bool], ...], frozenset[int]]:
    """What MXNet says of the memory of a gradient: of that of a small graph."""
    symbol = symbol_from(Node(VARIABLE, "x"), Node(op[len(_BACKWARD) :], "y", (Entry(0),)))
    graph = graph_of(symbol)
    training = training_graph(graph, infer_binding(symbol, {"x": (1,)}), mx.cpu())
    found = [node for node in training.nodes if node.op == op]
    if len(found) != 1:
        raise GraphError(f"expected one node {op} in a gradient, found {len(found)}")
    return found[0].inplace, found[0].ignored
