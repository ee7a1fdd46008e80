"""Applies gradient rules to a training graph, as the native hook applies them.

``echo/native/hook/gradient_rules.cc`` and ``echo/native/hook/split_gradients.cc`` do the same to a graph that is bound.
Done here, MXNet is not asked for the same graph a second time. It is tested against what MXNet binds.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import replace
from typing import Mapping, NamedTuple, Sequence

import mxnet as mx

from echo.errors import GraphError
from echo.estimators.storage_planner import blocks
from echo.frontend.cached import accumulations
from echo.frontend.capture import training_graph
from echo.frontend.symbols import graph_of, infer_binding, symbol_from
from echo.ir.gradient_rules import SUM
from echo.ir.graph import VARIABLE, Entry, Node
from echo.ir.op_spec import GradientRule, Read, Source
from echo.ir.schedule import CLONE_SUFFIX, in_execution_order
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode

_BACKWARD = "_backward_"


def apply_gradient_rules(training: TrainingGraph, rules: Mapping[int, GradientRule]) -> TrainingGraph:
    """The training graph in which gradients of the user's nodes (by number) follow these rules.

    Where MXNet would then add up gradients in another way, it is ``training`` itself.
    """
    nodes = list(training.nodes)
    splits = []
    for number, node in training.operators():
        for forward in () if node.forward else node.control_deps:
            rule = rules.get(training.nodes[forward].user)  # type: ignore[arg-type]
            if rule is None or rule.before != nodes[number].op:
                continue
            if rule.splits:
                splits.append(_Split(number, forward, rule))
            else:
                nodes[number] = _exchanged(nodes[number], forward, rule)
    result = replace(training, nodes=tuple(nodes), gradient_rules=dict(rules))
    if splits:
        result = _with_second_nodes(result, splits)
    return result if accumulations(result, blocks(result).chunk) == training.accumulations else training


class _Split(NamedTuple):
    """A gradient node that gets a second node alongside it, for its first output."""

    number: int
    forward: int
    rule: GradientRule


def _with_second_nodes(training: TrainingGraph, splits: Sequence[_Split]) -> TrainingGraph:
    readers: dict[Entry, list[int]] = defaultdict(list)
    for reader, node in enumerate(training.nodes):
        for entry in node.inputs:
            readers[Entry(entry.node, entry.index)].append(reader)
    for entry in training.outputs:
        readers[Entry(entry.node, entry.index)].append(-1)
    nodes = list(training.nodes)
    for number, forward, rule in splits:
        node, first = nodes[number], Entry(number)
        total = readers[first][0] if len(readers[first]) == 1 else -1
        last = _last_term(nodes, total, number, len(training.nodes)) if total >= 0 else None
        if last is None:
            continue
        read, before = _read(node, forward, rule, last), nodes[last.node]
        terms = tuple(Entry(len(nodes)) if entry[:2] == first[:2] else entry for entry in nodes[total].inputs)
        nodes.append(node.having(name=node.name + CLONE_SUFFIX, op=rule.after, inputs=read, external=frozenset()))
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


def _read(node: TrainingNode, forward: int, rule: GradientRule, term: Entry | None = None) -> tuple[Entry, ...]:
    def entry(read: Read) -> Entry:
        if read.source is Source.SUM and term is not None:
            return term
        return Entry(forward, read.position) if read.source is Source.FORWARD else node.inputs[read.position]

    return tuple(map(entry, rule.inputs))


def _exchanged(node: TrainingNode, forward: int, rule: GradientRule) -> TrainingNode:
    read = _read(node, forward, rule)
    if rule.after == node.op:
        return node.having(inputs=read)
    inplace, ignored = _facts(rule.after)
    return node.having(op=rule.after, inputs=read, inplace=inplace, ignored=ignored)


@functools.lru_cache(maxsize=None)
def _facts(op: str) -> tuple[tuple[tuple[int, int, bool], ...], frozenset[int]]:
    """The in-place options and the ignored inputs of a gradient operator, from MXNet's gradient of a tiny graph."""
    symbol = symbol_from(Node(VARIABLE, "x"), Node(op[len(_BACKWARD) :], "y", (Entry(0),)))
    graph = graph_of(symbol)
    training = training_graph(graph, infer_binding(symbol, {"x": (1,)}), mx.cpu())
    nodes = [node for node in training.nodes if node.op == op]
    if len(nodes) != 1:
        raise GraphError(f"expected one node {op} in a gradient, found {len(nodes)}")
    return nodes[0].inplace, nodes[0].ignored
