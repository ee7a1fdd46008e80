"""Hand-made training graphs, and measurements of their operators that are given in advance."""

from __future__ import annotations

from typing import Callable

from echo.estimators import cost_model
from echo.estimators.cost_model import CostModel, Measured, MeasureFunction, UnmeasurableError
from echo.estimators.cost_table import CostTable
from echo.ir.graph import VARIABLE, Entry
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode


class Build:
    """Collects nodes; every method returns the entry of the node that it adds."""

    def __init__(self) -> None:
        self.nodes: list[TrainingNode] = []

    def add(self, op: str, inputs: list[Entry], *shapes: tuple[int, ...], **fields: object) -> Entry:
        number = len(self.nodes)
        name = str(fields.pop("name", f"node{number}"))
        outputs = tuple(map(TensorType, shapes))
        self.nodes.append(TrainingNode(op, name, outputs, tuple(inputs), **fields))  # type: ignore[arg-type]
        return Entry(number)

    def variable(self, *shape: int) -> Entry:
        return self.add(VARIABLE, [], shape)

    def graph(self, *outputs: Entry) -> TrainingGraph:
        return TrainingGraph(tuple(self.nodes), outputs or (Entry(len(self.nodes) - 1),), 1, 0)


def chain(steps: int = 3, batch: int = 64) -> TrainingGraph:
    """Steps of (fully connected, tanh) with shared weights, and their gradients."""
    build = Build()
    of_weight = []
    data, weight = build.variable(batch, 256), build.variable(256, 256)
    products, maps = [], [data]
    for step in range(steps):
        attrs = {"num_hidden": "256", "no_bias": "True", "__layer__": str(step)}
        products.append(build.add("FullyConnected", [maps[-1], weight], (batch, 256), attrs=attrs))
        maps.append(build.add("Activation", [products[-1]], (batch, 256), attrs={"act_type": "tanh"}))
    gradient = build.add("_ones", [], (batch, 256), forward=False)
    for step in reversed(range(steps)):
        gradient = build.add(
            "_backward_Activation", [gradient, maps[step + 1], products[step]], (batch, 256),
            forward=False, control_deps=(maps[step + 1].node,),
        )  # fmt: skip
        gradient = build.add(
            "_backward_FullyConnected", [gradient, maps[step], weight], (batch, 256), (256, 256),
            forward=False, control_deps=(products[step].node,),
        )  # fmt: skip
        of_weight.append(Entry(gradient.node, 1))
    return build.graph(maps[-1], gradient, *of_weight)


def by_op(training: TrainingGraph, seconds: tuple[float, ...], op: str) -> set[float]:
    return {cost for node, cost in zip(training.nodes, seconds) if node.op == op}


Seconds = Callable[[TrainingGraph, int], float]


def timed(measure: Seconds) -> MeasureFunction:
    """A measurement that takes as long as its function does, by the clock of `echo.estimators.cost_model`."""

    def measured(training: TrainingGraph, number: int) -> Measured:
        start = cost_model.time.perf_counter()
        seconds = measure(training, number)
        return Measured(seconds, cost_model.time.perf_counter() - start)

    return measured


def estimate(
    training: TrainingGraph, table: CostTable, measure: Seconds | None, limit: float, onednn: bool = False
) -> CostModel:
    return cost_model.estimate(training, table, None if measure is None else timed(measure), limit, onednn)


def fixed(**seconds: float) -> Callable[[TrainingGraph, int], float]:
    """A measurement that knows some operators, and says how often it was asked (attribute ``asked``)."""

    def measure(training: TrainingGraph, number: int) -> float:
        op = training.nodes[number].op
        measure.asked.append(op)  # type: ignore[attr-defined]
        if op not in seconds:
            raise UnmeasurableError(op)
        return seconds[op]

    measure.asked = []  # type: ignore[attr-defined]
    return measure


def products(*rows: int) -> TrainingGraph:
    """Products of so many rows with a weight each, and their gradients."""
    build = Build()
    gradients = []
    for number in rows:
        data, weight = build.variable(number, 256), build.variable(256, 256)
        product = build.add("FullyConnected", [data, weight], (number, 256), attrs={"num_hidden": "256"})
        gradient = build.add(
            "_backward_FullyConnected", [build.variable(number, 256), data, weight], (number, 256), (256, 256),
            forward=False, control_deps=(product.node,),
        )  # fmt: skip
        gradients += [gradient, Entry(gradient.node, 1)]
    return build.graph(*gradients)
