"""Training graphs that follow from MXNet's without asking MXNet again: a CachedOp's, and those with gradient rules.

``echo/native/hook/gradient_rules.cc`` and ``echo/native/hook/split_gradients.cc`` apply gradient rules to a graph that
is bound.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Mapping, NamedTuple, Sequence

import mxnet as mx

from echo.errors import GraphError
from echo.estimators.storage_planner import blocks, planned_bytes
from echo.frontend.capture import captured_graph, graph_in
from echo.frontend.symbols import graph_with, infer_binding, numbered_symbol
from echo.ir.gradient_rules import SUM
from echo.ir.graph import VARIABLE, Entry, Node
from echo.ir.op_spec import GradientRule, Read, Source
from echo.ir.schedule import CLONE_SUFFIX, in_execution_order
from echo.ir.training_graph import GRADIENT_SUM, MemoryPool, Runner, TrainingGraph, added_outputs
from echo.ir.training_node import NO_NUMBERS, TrainingNode

# How planning for a CachedOp (a hybridized Gluon block) differs from planning for an executor.
#
# MXNet plans a CachedOp when it is called and cannot be asked beforehand: the training graph still comes from MXNet's
# own gradient pass, and its planner is replayed by the rule of a CachedOp (`echo.estimators.mxnet_storage`).


def as_cached(
    training: TrainingGraph, runner: Runner, match_range: int, pool: MemoryPool | None = None
) -> TrainingGraph:
    """The training graph as a CachedOp runs it: it does not own its outputs, and its planner follows another rule.

    ``pool`` is where it allocates dynamically.
    """
    training = _without_head_copies(training)
    heads: dict[int, set[int]] = defaultdict(set)
    for entry in training.outputs[: training.num_forward_outputs]:
        heads[entry.node].add(entry.index)
    sums = [node.inputs[1] for node in training.nodes if node.op == GRADIENT_SUM]
    terms = frozenset(sums)
    nodes = [node.having(external=node.external | heads.get(number, NO_NUMBERS),
                         untouched=frozenset(i for i in node.untouched if Entry(number, i) not in terms))
             if node.untouched or number in heads else node
             for number, node in enumerate(training.nodes)]  # fmt: skip
    cached = replace(training, nodes=tuple(nodes), runner=runner, pool=pool, accumulations=())
    if sums:
        in_place = accumulations(cached, blocks(cached).chunk)
        added = added_outputs((entry[:2] for entry in sums), in_place)
        nodes = [node.having(untouched=node.untouched | added[number]) if number in added else node
                 for number, node in enumerate(nodes)]  # fmt: skip
        cached = replace(cached, nodes=tuple(nodes), accumulations=in_place)
    return replace(cached, planned_bytes=planned_bytes(cached, match_range))


def _without_head_copies(training: TrainingGraph) -> TrainingGraph:
    """An executor copies the gradients of its outputs first; a CachedOp reads them where they are."""
    copies = {
        number: node.inputs[0]
        for number, node in training.operators()
        if node.op == "_identity_with_attr_like_rhs"
        and training.nodes[node.inputs[0].node].is_variable
        and training.nodes[node.inputs[0].node].name.startswith("_head_grad")
    }
    nodes = [
        node.having(inputs=tuple(copies.get(entry.node, entry) for entry in node.inputs))
        if any(entry.node in copies for entry in node.inputs)
        else node
        for node in training.nodes
    ]
    return in_execution_order(nodes, training) if copies else training


def accumulations(training: TrainingGraph, chunk: Sequence[int]) -> tuple[bool, ...]:
    """For each ``_grad_add``, in execution order: whether it is computed in place, by MXNet's pass DetectInplaceAddTo.

    ``chunk`` says of each entry where it is stored; only which entries share a chunk in place matters. A dynamic
    CachedOp computes none in place.
    """
    if training.runner == Runner.DYNAMIC:
        return ()
    readers = Counter(entry for node in training.nodes for entry in node.inputs)

    def place(entry: Sequence[int]) -> int:
        # the forward pass of a CachedOp has a plan of its own
        apart = training.runner.keeps_memory and training.nodes[entry[0]].forward
        return -1 if apart else chunk[training.first_entry[entry[0]] + entry[1]]

    in_place = []
    for number, node in training.operators():
        if node.op == GRADIENT_SUM:
            left, right = node.inputs
            variable = training.nodes[left.node].is_variable or training.nodes[right.node].is_variable
            shares = place(left) == place((number, 0))
            in_place.append(shares and not variable and readers[right] == 1 and left.node < right.node)
    return tuple(in_place)


# Applies gradient rules to a training graph, as the native hook applies them; tested against what MXNet binds.

_BACKWARD = "_backward_"


def apply_gradient_rules(training: TrainingGraph, rules: Mapping[int, GradientRule]) -> TrainingGraph:
    """The training graph in which gradients of the user's nodes (by number) follow these rules.

    Where MXNet would then add up gradients in another way, it is ``training`` itself.
    """
    nodes = list(training.nodes)
    splits = []
    for number, node in training.operators():
        for forward in () if node.forward else node.control_deps:
            rule = rules.get(training.nodes[forward].original)  # type: ignore[arg-type]
            if rule is None or rule.before != nodes[number].op:
                continue
            if rule.splits:
                splits.append(_SplitGradient(number, forward, rule))
            else:
                nodes[number] = _exchanged(nodes[number], forward, rule)
    result = replace(training, nodes=tuple(nodes), gradient_rules=dict(rules))
    if splits:
        result = _with_second_nodes(result, splits)
    return result if accumulations(result, blocks(result).chunk) == training.accumulations else training


class _SplitGradient(NamedTuple):
    """A gradient node that gets a second node alongside it, for its first output."""

    number: int
    forward: int
    rule: GradientRule


def _with_second_nodes(training: TrainingGraph, splits: Sequence[_SplitGradient]) -> TrainingGraph:
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
    inplace, shape_only = _facts(rule.after)
    return node.having(op=rule.after, inputs=read, inplace=inplace, shape_only=shape_only)


@functools.lru_cache(maxsize=None)
def _facts(op: str) -> tuple[tuple[tuple[int, int, bool], ...], frozenset[int]]:
    """The in-place options and the shape-only inputs of a gradient operator, from MXNet's gradient of a tiny graph."""
    graph = graph_with(Node(VARIABLE, "x"), Node(op[len(_BACKWARD) :], "y", (Entry(0),)))
    symbol = numbered_symbol(graph)
    captured = captured_graph(graph, infer_binding(symbol, {"n0": (1,)}), mx.cpu(), symbol=symbol)
    training = graph_in(captured, graph)
    nodes = [node for node in training.nodes if node.op == op]
    if len(nodes) != 1:
        raise GraphError(f"expected one node {op} in a gradient, found {len(nodes)}")
    return nodes[0].inplace, nodes[0].shape_only
