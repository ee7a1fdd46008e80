"""Other implementations of gradients in a training graph, as the native hook exchanges them.

This is what ``echo/native/hook/implementation.cc`` does to a graph that is bound; done here, MXNet does not have to be
asked for the same graph once more. It is tested against what MXNet binds.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Mapping

import mxnet as mx

from echo.errors import GraphError
from echo.estimators.planner import blocks
from echo.frontend.cached import accumulations
from echo.frontend.symbols import graph_of, infer_binding
from echo.frontend.training import training_graph
from echo.graph import Entry
from echo.implementations import parsed
from echo.training_graph import TrainingGraph, TrainingNode

_BACKWARD = "_backward_"


def implemented(training: TrainingGraph, implementations: Mapping[int, str]) -> TrainingGraph:
    """The training graph in which gradients of the user's nodes (by number) have these implementations.

    It is the graph as it was where MXNet would then add up gradients in another way.
    """
    wanted = {user: parsed(text) for user, text in implementations.items()}
    nodes = list(training.nodes)
    for number, node in training.operators():
        for forward in () if node.forward else node.control_deps:
            user = training.nodes[forward].user
            if user in wanted and wanted[user].before == nodes[number].op:
                nodes[number] = _exchanged(nodes[number], forward, wanted[user].after, wanted[user].inputs)
    found = replace(training, nodes=tuple(nodes), implementations=dict(implementations))
    return found if accumulations(found, blocks(found).chunk) == training.accumulations else training


def _exchanged(node: TrainingNode, forward: int, op: str, inputs: tuple[tuple[bool, int], ...]) -> TrainingNode:
    read = tuple(Entry(forward, at) if of_forward else node.inputs[at] for of_forward, at in inputs)
    if op == node.op:
        return node.having(inputs=read)
    inplace, ignored = _facts(op)
    return node.having(op=op, inputs=read, inplace=inplace, ignored=ignored)


@functools.lru_cache(maxsize=None)
def _facts(op: str) -> tuple[tuple[tuple[int, int, bool], ...], frozenset[int]]:
    """What MXNet says of the memory of a gradient: of that of a small graph."""
    symbol = getattr(mx.sym, op[len(_BACKWARD) :])(mx.sym.var("x"))
    graph = graph_of(symbol)
    training = training_graph(graph, infer_binding(symbol, {"x": (1,)}), mx.cpu())
    found = [node for node in training.nodes if node.op == op]
    if len(found) != 1:
        raise GraphError(f"expected one node {op} in the gradient of {symbol.name}, found {len(found)}")
    return found[0].inplace, found[0].ignored
