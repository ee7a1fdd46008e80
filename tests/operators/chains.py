"""Chains whose compute-heavy operators run twice, with all that lies between them: the same bits as without that.

``python -m tests.operators.chains`` tries them all in a process of its own, whose variables say how many threads MXNet
has, and prints the findings as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, NamedTuple

import mxnet as mx
import numpy as np

from echo.estimators.inplace import moved
from echo.frontend import install
from echo.frontend.framework import MxnetFramework
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, infer_binding, symbol_of
from echo.ir.graph import Entry, Graph
from echo.ir.ops import spec
from echo.ir.schedule import once
from echo.ir.training_graph import Runner, StorageStrategy, TrainingGraph
from echo.passes.analysis import Candidates, Differentiate, FindCandidates
from echo.passes.pass_manager import run
from echo.passes.request import Request
from echo.passes.rewrite import Rewrite
from echo.passes.select import Selection
from echo.planning.planner import Planner
from echo.plans.options import Options
from tests.operators.graph import Draw, normal
from tests.operators.run import DYNAMIC, EXECUTOR, STATIC, Run, differences

Shapes = Mapping[str, "tuple[int, ...]"]
RUNNERS = {EXECUTOR: Runner.EXECUTOR, STATIC: Runner.SHAPED, DYNAMIC: Runner.DYNAMIC}
WAYS = tuple((runner, grad_req) for runner in RUNNERS for grad_req in ("write", "add"))
RANGES = (1, 16, int(StorageStrategy.ASSIGNED))


class Found(NamedTuple):
    """How many compute-heavy operators ran twice, whether any operator is fused, and the arrays whose bits differ."""

    chain: str
    runner: str
    grad_req: str
    match_range: int
    heavy: int
    fused: bool
    wrong: dict[str, float]


@dataclass
class _Bound:
    """The symbol of one graph, as `tests.operators.run.Run` takes it."""

    graph: Graph
    variables: dict[str, tuple[tuple[int, ...], Any, Draw]]
    untrained: set[str] = field(default_factory=set)
    nodes: tuple[Any, ...] = ()
    is_random: bool = True

    def symbol(self, _: Any) -> mx.sym.Symbol:
        return symbol_of(self.graph)


def _conv(channels: int, bias: bool = True) -> mx.sym.Symbol:
    hidden = mx.sym.var("data")
    for layer in range(3):
        hidden = mx.sym.Convolution(hidden, kernel=(3, 3), pad=(1, 1), num_filter=channels, no_bias=not bias,
                                    name=f"conv{layer}")  # fmt: skip
        hidden = mx.sym.BatchNorm(hidden, fix_gamma=False, name=f"norm{layer}")
        hidden = mx.sym.Activation(hidden, act_type="relu", name=f"relu{layer}")
        if layer == 1:
            hidden = mx.sym.Pooling(hidden, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
    hidden = mx.sym.Deconvolution(hidden, kernel=(3, 3), num_filter=channels, name="up")
    return mx.sym.Convolution(mx.sym.tanh(hidden), kernel=(1, 1), num_filter=4, name="last")


def _grouped() -> mx.sym.Symbol:
    hidden = mx.sym.var("data")
    for layer in range(2):
        hidden = mx.sym.Convolution(hidden, kernel=(3, 3), pad=(1, 1), num_filter=16, num_group=16, no_bias=True)
        hidden = mx.sym.Activation(mx.sym.BatchNorm(hidden), act_type="relu")
        hidden = mx.sym.Convolution(hidden, kernel=(1, 1), num_filter=16) * mx.sym.sigmoid(hidden)
        hidden = mx.sym.Dropout(hidden, p=0.3, name=f"drop{layer}")
    return mx.sym.Convolution(hidden, kernel=(1, 1), num_filter=4, name="last")


def _dense() -> mx.sym.Symbol:
    hidden = mx.sym.var("data")
    for layer in range(4):
        hidden = mx.sym.FullyConnected(hidden, num_hidden=192, no_bias=layer == 1, name=f"fc{layer}")
        hidden = mx.sym.Activation(hidden, act_type=("tanh", "relu", "sigmoid", "softrelu")[layer])
        hidden = mx.sym.Dropout(hidden, p=0.3) if layer == 2 else hidden
    gram = mx.sym.dot(hidden, hidden, transpose_b=True)
    return mx.sym.FullyConnected(mx.sym.linalg.gemm2(mx.sym.tanh(gram), hidden), num_hidden=5, name="last")


def _rnn() -> mx.sym.Symbol:
    hidden = mx.sym.var("data")
    for layer in range(3):
        hidden = mx.sym.tanh(mx.sym.FullyConnected(hidden, num_hidden=32, flatten=False, name=f"in{layer}"))
        hidden = mx.sym.RNN(hidden * 1, mx.sym.var(f"rnn{layer}_parameters"), mx.sym.zeros(shape=(1, 8, 32)), p=0.2,
                            state_size=32, num_layers=1, mode="gru", name=f"rnn{layer}")  # fmt: skip
    return mx.sym.FullyConnected(mx.sym.tanh(hidden), num_hidden=5, flatten=False, name="last")


def _cells() -> mx.sym.Symbol:
    hidden = mx.sym.var("data")
    for layer in range(2):
        cell = mx.rnn.LSTMCell(24, prefix=f"lstm{layer}_")
        hidden, _ = cell.unroll(6, inputs=hidden, layout="TNC", merge_outputs=True)
    return mx.sym.FullyConnected(mx.sym.tanh(hidden), num_hidden=5, flatten=False, name="last")


def _attention() -> mx.sym.Symbol:
    hidden = mx.sym.var("data")
    for layer in range(2):
        query, key, value = (
            mx.sym.FullyConnected(hidden, num_hidden=32, flatten=False, name=f"{part}{layer}") for part in "qkv"
        )
        scores = mx.sym.softmax(mx.sym.batch_dot(query, key, transpose_b=True) / 5.0)
        hidden = mx.sym.LayerNorm(hidden + mx.sym.batch_dot(mx.sym.Dropout(scores, p=0.2), value), name=f"n{layer}")
        inner = mx.sym.FullyConnected(hidden, num_hidden=64, flatten=False, name=f"inner{layer}")
        hidden = mx.sym.FullyConnected(mx.sym.LeakyReLU(inner, act_type="gelu"), num_hidden=32, flatten=False)
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=50, name="last"), mx.sym.var("label"))


IMAGES = {"data": (4, 8, 12, 12)}
# the symbol, the shapes, whether operators are fused, and the fewest compute-heavy operators that run twice
CHAINS: Mapping[str, tuple[Callable[[], mx.sym.Symbol], Shapes, bool, int]] = {
    "conv 3": (lambda: _conv(3), IMAGES, False, 3),
    "conv 8": (lambda: _conv(8), IMAGES, False, 3),
    "conv 16": (lambda: _conv(16, bias=False), IMAGES, False, 3),
    "grouped": (_grouped, {"data": (4, 16, 10, 10)}, False, 2),
    "dense": (_dense, {"data": (96, 160)}, False, 5),
    "rnn": (_rnn, {"data": (6, 8, 20)}, False, 2),
    "cells": (_cells, {"data": (6, 8, 20)}, False, 10),
    "fused cells": (_cells, {"data": (6, 8, 20)}, True, 2),
    "attention": (_attention, {"data": (4, 24, 32)}, False, 10),
    "fused attention": (_attention, {"data": (2, 96, 32)}, True, 8),
}


class Chain:
    """A chain that one of the runners trains: its graph, with fused operators if there are some, and its training."""

    def __init__(self, name: str, runner: str, grad_req: str) -> None:
        build, shapes, fuses, self.least = CHAINS[name]
        with mx.name.NameManager():
            symbol = build()
        self.name, self.runner, self.grad_req = name, runner, grad_req
        self.binding = infer_binding(symbol, shapes, None, "write")
        framework = MxnetFramework(graph_of(symbol), self.binding, mx.cpu(), RUNNERS[runner])
        options = Options(policy="none", fuse="memory" if fuses else False)
        found = Planner().plan(lambda: framework, options)
        self.base, self.fused = found.base, bool(found.plan.fused)
        self.request = Request(self.base, options, framework.on(self.base))
        values = run((Differentiate(), FindCandidates()), [self.request], lambda _: None)
        self.training: TrainingGraph = values[TrainingGraph]
        self.candidates: Candidates = values[Candidates]

    def again(self) -> dict[int, tuple[Entry, ...]]:
        """All nodes that may be recomputed at once, by their entries."""
        chosen = {**self.candidates.light, **self.candidates.heavy}
        while True:
            entries = [entry for each in chosen.values() for entry in each]
            refused = moved(self.training, "cpu", entries, once(self.training, chosen))
            if not refused & set(chosen):
                return chosen
            chosen = {number: each for number, each in chosen.items() if number not in refused}

    def heavy(self) -> int:
        """How many compute-heavy operators there are among these."""
        return sum(spec(self.training.nodes[number].op).cost.heavy for number in self.again())

    def recomputed(self, match_range: int) -> Graph:
        """The graph in which all of them run twice."""
        chosen = self.again()
        entries = frozenset(entry for each in chosen.values() for entry in each)
        runs = dict.fromkeys(chosen, 1)
        selection = Selection(entries, once(self.training, chosen), runs, match_range, 0, 0.0)
        return Rewrite().run(self.request, self.training, selection).graph

    def record(self, graph: Graph) -> Any:
        """Every bit of some steps of one of the graphs."""
        symbol = symbol_of(graph)
        names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
        shapes = (*self.binding.arg_shapes, *self.binding.aux_shapes)
        variables = {name: (shape, np.dtype("float32"), _draw(name)) for name, shape in zip(names, shapes)}
        bound: Any = _Bound(graph, variables)
        return Run(bound, {}, self.runner, self.grad_req).steps()

    def found(self, match_range: int, expected: Any) -> Found:
        wrong = differences(self.record(self.recomputed(match_range)), expected)
        return Found(self.name, self.runner, self.grad_req, match_range, self.heavy(), self.fused, wrong)


def _draw(name: str) -> Draw:
    if name == "label":
        return lambda random, shape: random.randint(0, 50, shape)
    if name.endswith(("gamma", "var")):
        return lambda random, shape: 1 + np.abs(random.normal(0, 0.2, shape))
    if name == "data":
        return normal
    return lambda random, shape: random.normal(0, shape[-1] ** -0.5 if len(shape) > 1 else 0.2, shape)


def findings(name: str) -> Iterator[Found]:
    """All findings on a chain."""
    for runner, grad_req in WAYS:
        chain = Chain(name, runner, grad_req)
        expected = chain.record(chain.base)
        for match_range in RANGES:
            yield chain.found(match_range, expected)


def main() -> None:
    assert install_hook() == ""
    assert install.extension_blocker() == ""
    json.dump([each._asdict() for name in CHAINS for each in findings(name)], sys.stdout)


if __name__ == "__main__":
    main()
