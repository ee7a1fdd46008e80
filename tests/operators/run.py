"""Some steps of training of a graph, every bit of which is kept, and what happened to its memory."""

from __future__ import annotations

import itertools
from typing import Any, Mapping

import mxnet as mx
import numpy as np
from mxnet import autograd

from echo import native
from echo.ir.ops import may_draw
from echo.runtime.cached_op import StockCachedOp
from tests.operators.graph import UNDER, Built

EXECUTOR, STATIC, DYNAMIC = "executor", "static", "dynamic"
RUNNERS = (EXECUTOR, STATIC, DYNAMIC)
_FLAGS = {STATIC: [("static_alloc", True), ("static_shape", True)], DYNAMIC: [("inline_limit", 0)]}
STEPS = 2
Record = Mapping[str, Any]
Marks = Mapping[str, Mapping[str, str]]


def values_of(built: Built, step: int) -> dict[str, Any]:
    """The values of all variables in this step, by name, whatever their order."""
    random = np.random.RandomState(1000 + step)
    return {name: draw(random, shape).astype(dtype) for name, (shape, dtype, draw) in built.variables.items()}


class Run:
    """A graph bound for training by one of the runners. ``graphs`` are the training graphs that MXNet planned."""

    def __init__(self, built: Built, marks: Marks, runner: str, grad_req: str) -> None:
        self.built, self.runner, self.grad_req = built, runner, grad_req
        self.symbol = built.symbol(marks)
        self.auxiliary = self.symbol.list_auxiliary_states()
        self.arrays = {name: mx.nd.array(value, dtype=value.dtype) for name, value in values_of(built, 0).items()}
        names = self.symbol.list_arguments()
        self.trained = [name for name in names if name not in built.untrained]
        self.graphs: list[Any] = []

    def steps(self) -> dict[str, Any]:
        """Outputs, gradients and auxiliary states of each step; the inputs are fresh in each."""
        seen: dict[str, Any] = {}
        run = self._executor_steps if self.runner == EXECUTOR else self._cached_steps
        for step, outputs, gradients in run():
            mx.nd.waitall()  # on CPUs BatchNorm writes its moving statistics in backward, and the engine does not know
            seen.update({f"{step} output {number}": array.asnumpy() for number, array in enumerate(outputs)})
            seen.update({f"{step} gradient of {name}": gradients[name].asnumpy() for name in self.trained})
            seen.update({f"{step} state {name}": self.arrays[name].asnumpy() for name in self.auxiliary})
        return seen

    def _refresh(self, step: int) -> None:
        for name, value in values_of(self.built, step).items() if step else ():
            if name not in self.auxiliary:
                self.arrays[name][:] = value
        if self.built.is_random:
            mx.random.seed(step)

    def _gradients(self) -> dict[str, Any]:
        return {name: mx.nd.ones(self.arrays[name].shape, dtype=self.arrays[name].dtype) for name in self.trained}

    def _executor_steps(self) -> Any:
        gradients = self._gradients()
        wanted = {name: self.grad_req if name in gradients else "null" for name in self.symbol.list_arguments()}
        args = {name: self.arrays[name] for name in wanted}
        with native.capture() as caught:
            states = [self.arrays[name] for name in self.auxiliary]
            executor = self.symbol.bind(mx.cpu(), args, gradients, wanted, states)
        self.graphs.append(caught.graph)
        self._check_draws(caught.graph)
        for step in range(STEPS):
            self._refresh(step)
            executor.forward(is_train=True)
            executor.backward([mx.nd.full(output.shape, 1.25, dtype=output.dtype) for output in executor.outputs])
            yield step, executor.outputs, gradients

    def _check_draws(self, graph: Any) -> None:
        """Operators that draw random numbers are known to draw them: fusion keeps the order of draws."""
        attrs = {node["name"]: node["attrs"] for node in self.built.nodes}
        random = [node for node in nodes_in(graph) if node.kind.get("random") and node.name in attrs]
        assert all(may_draw(node.kind["op"], attrs[node.name]) for node in random), random

    def _cached_steps(self) -> Any:
        op = StockCachedOp(self.symbol, _FLAGS[self.runner])
        gradients = self._gradients()
        for name in self.trained:
            autograd.mark_variables([self.arrays[name]], [gradients[name]], self.grad_req)
        for step in range(STEPS):
            self._refresh(step)
            with native.capture() as forward, autograd.record():
                outputs = op(*(self.arrays[name] for name in self.symbol.list_inputs()))
            outputs = outputs if isinstance(outputs, list) else [outputs]
            with native.capture() as backward:
                autograd.backward(outputs, [mx.nd.full(out.shape, 1.25, dtype=out.dtype) for out in outputs])
            self.graphs += [forward.graph, backward.graph] if not step else []
            yield step, outputs, gradients


def node_under(graph: Any) -> Any:
    """The operator under test in a training graph; of control flow None: the last graph planned is a subgraph of it."""
    return next((node for node in nodes_in(graph) if node.name == UNDER), None)


def nodes_in(graph: Any) -> list[native.CapturedNode]:
    """The nodes of a training graph, or of None, which has none."""
    return list(native.captured_nodes(graph)) if graph else []


def is_taken_over(graph: Any, names: set[str]) -> bool:
    """Whether later nodes of this training graph write into the memory of each of these nodes before the gradient of
    the operator under test has run; of a graph without gradients: before its end."""
    nodes = nodes_in(graph)
    number_of = {node.name: number for number, node in enumerate(nodes)}
    if UNDER not in number_of:  # the last graph that was planned is a subgraph of control flow
        return False
    under = number_of[UNDER]
    gradients = [number for number, node in enumerate(nodes) if under in node.control_deps]
    end = max(gradients, default=len(nodes))
    first = list(itertools.accumulate((len(node.kind["shapes"]) for node in nodes), initial=0))
    storage = graph["storage"]
    later = set(storage[first[under] : first[end]])
    return all(storage[first[number_of[name]]] in later for name in names)


def differences(found: Record, expected: Record) -> dict[str, float]:
    """The arrays whose bits differ, and by how much of their largest element."""
    wrong = {}
    for name, value in expected.items():
        other = found[name]
        if (other.shape, other.dtype, other.tobytes()) != (value.shape, value.dtype, value.tobytes()):
            largest = max(float(np.abs(value).max(initial=0)), 1e-30)
            wrong[name] = float(np.abs(other.astype("float64") - value).max(initial=0)) / largest
    return wrong
