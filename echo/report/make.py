"""Usages of training graphs: lifetimes of their arrays, with the arrays that the executor is given."""

from __future__ import annotations

from typing import Iterable, Iterator, Mapping

from echo.estimators.footprint import MIRROR_SUFFIX, OUTPUT_GRADIENTS, RECOMPUTED, layer_of, lifetimes
from echo.estimators.storage_planner import blocks
from echo.ir.graph import VARIABLE
from echo.ir.schedule import CLONE_SUFFIX
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode
from echo.report.usage import ALWAYS, Tensor, Usage


def usage(
    training: TrainingGraph, planned: int, given: Iterable[tuple[str, str, int]], beside: Mapping[str, int]
) -> Usage:
    """The usage of a training graph as MXNet binds it, clones included.

    Args:
        training: the graph that runs.
        planned: bytes of MXNet's memory planner for it.
        given: arrays that the executor is given: name, kind, bytes.
        beside: bytes beside both, by kind.
    """
    operators = [number for number, node in enumerate(training.nodes) if node.op != VARIABLE]
    step_of = {number: step for step, number in enumerate(operators)}
    end = max(len(operators) - 1, 0)
    arrays = (
        Tensor(name, "", layer_of(TrainingNode(VARIABLE, name, ())), kind, size, ALWAYS, end)
        for name, kind, size in given
        if size
    )
    nodes = training.nodes
    return Usage(
        planned=planned,
        beside={kind: size for kind, size in beside.items() if size},
        steps=tuple(nodes[number].name for number in operators),
        forward_steps=sum(nodes[number].forward for number in operators),
        tensors=(*arrays, *_passing(training, step_of)),
    )


def _passing(training: TrainingGraph, step_of: Mapping[int, int]) -> Iterator[Tensor]:
    """The arrays between nodes, whose memory MXNet plans."""
    clones = {node.name + suffix for node in training.nodes if node.forward for suffix in (CLONE_SUFFIX, MIRROR_SUFFIX)}
    for life in lifetimes(training, blocks(training)):
        node = training.nodes[life.node]
        is_clone = life.kind == OUTPUT_GRADIENTS and node.name in clones
        kind = RECOMPUTED if is_clone else life.kind
        yield Tensor(node.name, node.op, life.layer, kind, life.bytes, step_of[life.node], step_of[life.last])
