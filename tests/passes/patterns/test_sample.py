"""Both graphs of a sample compute the same, for every pattern: MXNet runs them."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from echo.frontend.install import why_not
from echo.frontend.symbols import graph_of, infer_binding, symbol_of, types_of
from echo.ir.graph import Graph
from echo.ir.training_node import TensorType
from echo.passes.patterns.apply import find
from echo.passes.patterns.graph_view import Fusion, View
from echo.passes.patterns.sample import Sample, sample
from tests.support.fused_models import BATCH, EXAMPLES, STEPS, Example

NAMES = ["softmax output", "softmax output, padded", "biased", "dot attention", "dot attention with a mask",
         "dot attention with a bias", "gluon lstm", "gluon lstm, two layers both ways", "packed lstm", "attention",
         "lstm layer", "gru cells", "layer norm", "rectified"]  # fmt: skip


def found(example: Example) -> tuple[View, Fusion, dict[Any, TensorType]]:
    """The first fusion of an example, in its graph, with the types of the graph's entries."""
    graph = graph_of(example.symbol)
    fusions, _ = find(graph)
    return View(graph), fusions[0], types_of(graph, infer_binding(example.symbol, example.shapes))


def run(graph: Graph, arrays: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The outputs of one training step, and the gradients of the variables by name."""
    assert why_not() == ""
    symbol = symbol_of(graph)
    given = {name: mx.nd.array(arrays[name]) for name in symbol.list_arguments()}
    gradients = {name: mx.nd.zeros(array.shape) for name, array in given.items()}
    executor = mx.sym.Symbol.bind(symbol, mx.cpu(), given, gradients)
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones(output.shape) for output in executor.outputs])
    return [out.asnumpy() for out in executor.outputs], {name: array.asnumpy() for name, array in gradients.items()}


def compare(made: Sample) -> None:
    draw = np.random.default_rng(0)
    arrays = {name: draw.uniform(-0.1, 0.1, tensor.shape) for name, tensor in made.types.items()}
    (own, own_gradients), (fused, fused_gradients) = run(made.own, arrays), run(made.fused, arrays)
    assert len(own) == len(fused) == len(made.own.heads)
    for mine, theirs in zip(fused, own):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert own_gradients.keys() | fused_gradients.keys() == made.types.keys()
    for name in own_gradients.keys() & fused_gradients.keys():
        assert fused_gradients[name] == pytest.approx(own_gradients[name], abs=1e-4), name


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_compute_the_same(name: str) -> None:
    made = sample(*found(EXAMPLES[name]()))
    ops = {node.op for node in made.fused.nodes} - {node.op for node in made.own.nodes}
    assert any(op.startswith("_echo_") for op in ops)
    compare(made)


def test_a_part_of_the_rows() -> None:
    for name, letter, shape in (("softmax output", "N", (2,)), ("gluon lstm", "T", (2, BATCH))):
        made = sample(*found(EXAMPLES[name]()), {letter: 2})
        whole = sample(*found(EXAMPLES[name]()))
        assert any(tensor.shape[: len(shape)] == shape for tensor in made.types.values())
        assert sum(tensor.bytes for tensor in made.types.values()) < sum(each.bytes for each in whole.types.values())
        compare(made)


def test_annotations_and_names_of_the_user_do_not_matter() -> None:
    """The same operators of another model are timed once."""
    symbols = []
    for prefix in "ab":
        x = mx.sym.FullyConnected(mx.sym.var(f"{prefix}_data"), num_hidden=700, name=f"{prefix}_fc", lr_mult=prefix)
        symbols.append(mx.sym.SoftmaxOutput(x, name=f"{prefix}_softmax"))
    graphs = []
    for symbol in symbols:
        shapes = {name: (400, STEPS) for name in symbol.list_arguments() if name.endswith("data")}
        made = sample(*found(Example(symbol, shapes, {}, {})))
        graphs.append((made.own.to_json(), made.fused.to_json(), made.types))
    assert graphs[0] == graphs[1]
