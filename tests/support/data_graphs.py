"""Training graphs as data for the tests of planning: random ones, chains, and those of tests/data/ilp."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any, Sequence

from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from echo.policies.data_graph import DataGraph, load_dag

ILP = Path(__file__).parents[1] / "data" / "ilp"
ILP_NAMES = ("vgg16_b176", "unet_b11", "resnet50_b184")


def node(op: str, size: int, inputs: Sequence[int], number: int, forward: bool = True) -> TrainingNode:
    """A node with one output of so many bytes."""
    reads = tuple(Entry(read) for read in inputs)
    kind = TensorType((size,), 3)
    return TrainingNode(op, f"{op}{number}", (kind,), reads, forward=forward, original=number if forward else None)


def random_graph(seed: int, forward: int) -> DataGraph:
    """So many forward nodes and a loss, branches and joins, sizes that repeat, some of zero; then their gradients."""
    generator = random.Random(seed)
    nodes: list[TrainingNode] = []
    for number in range(forward + 1):
        near = range(max(0, number - 4), number)
        reads = sorted({generator.choice(near) for _ in range(generator.choice((1, 1, 2, 2, 3)))}) if near else []
        op = "linear" if generator.random() < 0.3 else "relu"
        nodes.append(node(op, generator.choice((0, 1, 2, 3, 5, 8)), reads, number))
    for number in reversed(range(forward + 1)):
        reads = {len(nodes) - 1}
        reads |= {read for read in (number, *(e.node for e in nodes[number].inputs)) if generator.random() < 0.7}
        nodes.append(node("grad", generator.choice((0, 1, 2, 4)), sorted(reads), len(nodes), forward=False))
    seconds = tuple(round(generator.uniform(0.1, 3.0), 2) for _ in nodes)
    return DataGraph(TrainingGraph(tuple(nodes), (), 0, 0), seconds)


def chain(length: int) -> DataGraph:
    """Nodes of one byte and one second each, whose gradients read their outputs, as those of tanh do."""
    nodes = [node("tanh", 1, [number - 1] if number else [], number) for number in range(length)]
    nodes.append(node("loss", 1, [length - 1], length))
    for number in reversed(range(length)):
        nodes.append(node("tanh_grad", 1, [len(nodes) - 1, number], len(nodes), forward=False))
    return DataGraph(TrainingGraph(tuple(nodes), (), 0, 2 * length), (1.0,) * len(nodes))


def unrolled(steps: int) -> DataGraph:
    """An LSTM cell in so many time steps of 25 nodes: matrix products, and light operators between them."""
    nodes: list[TrainingNode] = []

    def add(op: str, size: int, *reads: int) -> int:
        nodes.append(node(op, size, reads, len(nodes), forward=op != "grad"))
        return len(nodes) - 1

    tape = []
    hidden, state = add("tanh", 1024), add("tanh", 1024)
    for _ in range(steps):
        product = add("linear", 4096, hidden)
        gates = [add("sigmoid", 1024, add("slice", 1024, product)) for _ in range(4)]
        kept = add("mul", 1024, gates[0], state)
        before, state = state, add("add", 1024, kept, add("mul", 1024, gates[1], gates[2]))
        squashed = add("tanh", 1024, state)
        hidden = add("mul", 1024, squashed, gates[3])
        tape.append((gates, before, squashed))
    last = add("loss", 4, hidden)
    for gates, before, squashed in reversed(tape):
        for reads in ((squashed, gates[3]), (squashed,), (gates[0], before), (gates[1], gates[2])):
            last = add("grad", 1024, last, *reads)
        for gate in gates:
            last = add("grad", 1024, last, gate)
    seconds = tuple(1e-4 if item.op == "linear" else 1e-5 for item in nodes)
    return DataGraph(TrainingGraph(tuple(nodes), (), 0, 0), seconds)


@lru_cache(maxsize=None)
def ilp_graph(name: str) -> DataGraph:
    return load_dag(ILP / f"{name}.json")


@lru_cache(maxsize=None)
def ilp_plans(name: str) -> list[dict[str, Any]]:
    """The solution of the authors' integer program: bytes, cost, overhead."""
    plans: list[dict[str, Any]] = json.loads((ILP / f"{name}.json").read_text(encoding="utf-8"))["ilp_plans"]
    return plans
