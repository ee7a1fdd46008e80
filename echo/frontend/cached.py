"""How planning for a CachedOp (a hybridized Gluon block) differs from planning for an executor.

MXNet plans a CachedOp when it is called and cannot be asked beforehand: the training graph still comes from MXNet's own
gradient pass, and its planner is replayed by the rule of a CachedOp (`echo.estimators.mxnet_storage`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, Mapping, Sequence

import mxnet as mx

from echo.errors import GraphError
from echo.estimators.mxnet_storage import plan_storage
from echo.estimators.storage_planner import blocks
from echo.frontend.symbols import Binding, sparse_gradients
from echo.ir.graph import Entry, Graph, Node
from echo.ir.op_spec import COPY_ATTRIBUTE
from echo.ir.ops import ops_with, spec
from echo.ir.schedule import in_execution_order
from echo.ir.training_graph import (
    DYNAMIC,
    GRADIENT_SUM,
    KEEPS_MEMORY,
    SHAPED,
    STATIC,
    MemoryPool,
    TrainingGraph,
    added_outputs,
)
from echo.ir.training_node import NO_NUMBERS

_MOST_GATES = 8  # an LSTM cell has four
_WITH_STATE = {op: spec(op) for op in ops_with(lambda row: bool(row.stateless_as))}
_STATEFUL = {  # the operators that keep state, and their gradients, by the names of the stateless ones
    **{row.stateless_as: op for op, row in _WITH_STATE.items()},
    **{spec(row.stateless_as).gradient: row.gradient for row in _WITH_STATE.values()},
}
_NUMBER_ATTRIBUTE = "__echo_node__"  # tells nodes apart that are equal otherwise; nothing reads it


def runner_of(static_alloc: bool, static_shape: bool) -> str:
    """The runner of a CachedOp with these flags; MXNet takes ``static_shape`` with ``static_alloc`` alone."""
    if not static_alloc:
        return DYNAMIC
    return SHAPED if static_shape else STATIC


def binding_of_call(symbol: mx.sym.Symbol, args: Sequence[Any]) -> Binding:
    """The binding that MXNet assumes of a CachedOp: a gradient of every input that is no auxiliary state."""
    names = symbol.list_inputs()
    if len(set(names)) < len(names):
        raise GraphError(f"several inputs of the block have the name {Counter(names).most_common(1)[0][0]!r}")
    arrays = dict(zip(names, args))
    arguments = [arrays[name] for name in symbol.list_arguments()]
    states = [arrays[name] for name in symbol.list_auxiliary_states()]
    return Binding.of_arrays(arguments, states, ["write"] * len(arguments), sparse_gradients(symbol))


def stateless(graph: Graph) -> Graph:
    """The graph with operators that keep state replaced by stateless ones of the same bits.

    A CachedOp has no room for the state of a node that it runs again. SliceChannel, which is in every LSTM cell, keeps
    one although it needs none; ``_split_v2`` is the same without. But it takes 20 times as long for steps, which are
    long runs of elements: those stay as they are, and run once.
    """
    if not any(map(_is_of_gates, graph.nodes)):
        return graph
    nodes = (_stateless(node, number) if _is_of_gates(node) else node for number, node in enumerate(graph.nodes))
    return replace(graph, nodes=tuple(nodes))


def _stateless(node: Node, number: int) -> Node:
    return replace(node, op=spec(node.op).stateless_as, attrs=_split(node.attrs, number))


def _is_of_gates(node: Node) -> bool:
    return bool(spec(node.op).stateless_as) and int(node.attrs["num_outputs"]) <= _MOST_GATES


def as_stateful(node: str, value: str, op: str) -> tuple[str, str]:
    """The name and operator that MXNet gives to a value of a SliceChannel, from those of a `stateless` one."""
    of_node = value[len(node) + 1 :]
    if of_node.isdigit():
        of_node = f"output{of_node}"
    elif of_node == "backward_0":
        of_node = "backward_data"
    return f"{node}_{of_node}", _STATEFUL.get(op, op)


def _split(attrs: Mapping[str, str], number: int) -> dict[str, str]:
    split = {"indices": "()", "axis": "1", "squeeze_axis": "False", "sections": attrs["num_outputs"]}
    split[COPY_ATTRIBUTE] = "all"  # its gradient overwrites where SliceChannel's adds
    split[_NUMBER_ATTRIBUTE] = str(number)  # MXNet merges equal nodes that keep no state, and sums gradients otherwise
    return {**split, **{name: text for name, text in attrs.items() if name != "num_outputs"}}


def as_cached(training: TrainingGraph, runner: str, match_range: int, pool: MemoryPool | None = None) -> TrainingGraph:
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
    return replace(cached, planned_bytes=plan_storage(cached, match_range).total)


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
    if training.runner == DYNAMIC:
        return ()
    readers = Counter(entry for node in training.nodes for entry in node.inputs)

    def place(entry: Sequence[int]) -> int:
        # the forward pass of a CachedOp has a plan of its own
        apart = training.runner in KEEPS_MEMORY and training.nodes[entry[0]].forward
        return -1 if apart else chunk[training.first_entry[entry[0]] + entry[1]]

    in_place = []
    for number, node in training.operators():
        if node.op == GRADIENT_SUM:
            left, right = node.inputs
            variable = training.nodes[left.node].is_variable or training.nodes[right.node].is_variable
            shares = place(left) == place((number, 0))
            in_place.append(shares and not variable and readers[right] == 1 and left.node < right.node)
    return tuple(in_place)
