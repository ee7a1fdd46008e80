"""Graphs of real symbols: small models of the benchmarks, and symbols with structure that these do not have."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Callable, Mapping

import mxnet as mx

from benchmarks.models import SMALL
from echo.frontend.capture import mxnet_memory_plan, training_graph
from echo.frontend.install import install_hook
from echo.frontend.mxnet_settings import match_range
from echo.frontend.symbols import Binding, graph_of, infer_binding, symbol_of
from echo.ir.graph import Entry, Graph
from echo.ir.op_spec import RANGE_ATTRIBUTE, GradientRule
from echo.ir.schedule import RecomputeSchedule
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode, all_outputs, why_not_recomputable
from echo.passes.request import Request
from echo.passes.rewrite import Rewrite
from echo.passes.select import Selection
from echo.plans.options import Options
from tests.support.fake_frontend import FakeFramework

MATCH_RANGES = (1, 2, 3, 16, 64)


def recomputable_outputs(node: TrainingNode, device: str, hook: bool) -> tuple[int, ...]:
    """The outputs of a forward node that may be recomputed, none where that is not safe."""
    return () if why_not_recomputable(node, device, hook) else all_outputs(node, hook)


@dataclass(frozen=True)
class Case:
    """A symbol, how it is bound, and the training graph that MXNet makes of it."""

    symbol: mx.sym.Symbol
    graph: Graph
    binding: Binding
    training: TrainingGraph

    def draw(self, seed: int, share: float, hook: bool = True) -> frozenset[Entry]:
        """Recomputable entries, each taken with this probability; all of a node or none without the hook."""
        generator = random.Random(seed)
        drawn: set[Entry] = set()
        for outputs in recomputable(self.training, hook).values():
            together = generator.random() < share
            drawn.update(entry for entry in outputs if (generator.random() < share if hook else together))
        return frozenset(drawn)

    def draw_schedule(self, seed: int, entries: frozenset[Entry]) -> dict[int, tuple[int, ...]]:
        """Positions of one to three backward nodes for two thirds of the nodes of these entries."""
        generator = random.Random(seed)
        backward = [number for number, node in self.training.operators() if not node.forward]
        return {
            node: tuple(sorted(generator.sample(backward, min(len(backward), generator.randint(1, 3)))))
            for node in sorted({entry.node for entry in entries})
            if generator.random() < 0.67
        }

    def rewritten(
        self, entries: frozenset[Entry], hook: bool = True, schedule: RecomputeSchedule | None = None
    ) -> Graph:
        """The original graph with the attributes that make the hook, or MXNet itself, recompute these entries."""
        request = Request(self.graph, Options(), FakeFramework(self.training, hook=hook))
        selection = Selection(entries, schedule or {}, {entry.node: 1 for entry in entries}, 16, 0, 0.0)
        return Rewrite().run(request, self.training, selection).graph

    def bound(self, graph: Graph) -> TrainingGraph:
        """The training graph that MXNet, with the hook, makes of a graph."""
        return training_graph(graph, self.binding, mx.cpu())

    def apply_gradient_rules(
        self, training: TrainingGraph, gradient_rules: Mapping[int, GradientRule]
    ) -> TrainingGraph:
        return training

    def mxnet_memory_plan(self, graph: Graph, match_range_: int) -> int:
        """Bytes that MXNet's own memory planner needs for a graph."""
        if match_range_ < 0:  # no range, but echo's own assignment: the hook finds it in the graph
            everywhere = {number: {RANGE_ATTRIBUTE: str(match_range_)} for number in range(len(graph.nodes))}
            graph = graph.with_attrs({n: attrs for n, attrs in everywhere.items() if not graph.nodes[n].is_variable})
            return mxnet_memory_plan(symbol_of(graph), self.binding, mx.cpu(), hook=True).bytes
        with match_range(match_range_):
            return mxnet_memory_plan(symbol_of(graph), self.binding, mx.cpu(), hook=True).bytes


def case_of(
    symbol: mx.sym.Symbol,
    shapes: Mapping[str, tuple[int, ...]],
    grad_req: Any = None,
    types: Mapping[str, Any] | None = None,
) -> Case:
    """A symbol bound on the CPU; by default everything but the given inputs is trained."""
    assert install_hook() == ""
    if grad_req is None:
        grad_req = {name: "null" if name in shapes else "write" for name in symbol.list_arguments()}
    graph, binding = graph_of(symbol), infer_binding(symbol, shapes, types, grad_req)
    return Case(symbol, graph, binding, training_graph(graph, binding, mx.cpu()))


@lru_cache(maxsize=None)
def model_case(name: str) -> Case:
    """A small model of the benchmarks."""
    model = SMALL[name]()
    return case_of(model.symbol, model.shapes)


def with_dropout() -> mx.sym.Symbol:
    hidden = mx.sym.var("data")
    for layer in range(3):
        hidden = mx.sym.FullyConnected(hidden, num_hidden=24, name=f"fc{layer}")
        hidden = mx.sym.Activation(hidden, act_type="tanh", name=f"tanh{layer}")
        hidden = mx.sym.Dropout(hidden, p=0.3, name=f"drop{layer}")
        hidden = mx.sym.sigmoid(hidden, name=f"sigmoid{layer}") * hidden
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=5), mx.sym.var("label"), name="softmax")


def with_slices() -> mx.sym.Symbol:
    gates = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=32, name="gates")
    parts = mx.sym.SliceChannel(gates, num_outputs=4, name="parts")
    cell = mx.sym.sigmoid(parts[0]) * mx.sym.tanh(parts[1]) + mx.sym.relu(parts[2]) * parts[1]
    joined = mx.sym.Concat(cell, mx.sym.tanh(cell) * mx.sym.sigmoid(parts[3]), parts[0], dim=1)
    halves = mx.sym.SliceChannel(mx.sym.tanh(joined), num_outputs=3, axis=1, name="thirds")
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.dot(halves[0], halves[1], transpose_b=True)) + mx.sym.sum(halves[2]))


def with_many_readers() -> mx.sym.Symbol:
    """Ten gradients are summed for one map: above eight, MXNet sums them with another operator."""
    hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="fc"), name="hidden")
    weight = mx.sym.var("weight")
    parts = [
        mx.sym.FullyConnected(mx.sym.tanh(hidden * (step + 1.0)), weight=weight, no_bias=True, num_hidden=8)
        for step in range(10)
    ]
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(mx.sym.add_n(*parts))))


def with_float16() -> mx.sym.Symbol:
    half = mx.sym.Cast(mx.sym.var("data"), dtype="float16")
    hidden = mx.sym.FullyConnected(half, mx.sym.var("w", dtype="float16"), no_bias=True, num_hidden=12)
    for _ in range(3):
        hidden = mx.sym.exp(mx.sym.tanh(hidden)) * hidden
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.softmax(mx.sym.Cast(mx.sym.Flatten(hidden), dtype="float32"))))


def with_two_outputs() -> mx.sym.Symbol:
    hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=12, name="fc"), name="hidden")
    norm = mx.sym.LayerNorm(hidden, name="norm")
    return mx.sym.Group([mx.sym.exp(norm) * hidden, hidden, mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(norm)))])


SPECIAL: dict[str, Callable[[], Case]] = {
    "dropout": lambda: case_of(with_dropout(), {"data": (8, 20), "label": (8,)}),
    "slices": lambda: case_of(with_slices(), {"data": (6, 10)}),
    "many readers": lambda: case_of(with_many_readers(), {"data": (6, 10)}, grad_req="add"),
    "float16": lambda: case_of(with_float16(), {"data": (6, 10)}),
    "two outputs": lambda: case_of(with_two_outputs(), {"data": (6, 10)}),
}


@lru_cache(maxsize=None)
def special_case(name: str) -> Case:
    """A symbol with structure that the models do not have."""
    return SPECIAL[name]()


ALL_CASES = (*SMALL, *SPECIAL)


def any_case(name: str) -> Case:
    """A small model of the benchmarks or a special symbol."""
    return special_case(name) if name in SPECIAL else model_case(name)


def recomputable(training: TrainingGraph, hook: bool = True) -> dict[int, tuple[Entry, ...]]:
    """The entries of every forward operator that may be recomputed, heavy ones included."""
    found = {}
    for number, node in training.operators():
        if node.forward and node.original is not None and 0 not in node.outputs[0].shape:
            outputs = recomputable_outputs(node, "cpu", hook)
            if outputs:
                found[number] = tuple(Entry(number, output) for output in outputs)
    return found
