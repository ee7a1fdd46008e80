"""The small graph in which a node is timed: its inputs, what belongs to it, and how it is cut; nothing runs here."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import pytest

from echo.estimators.overhead import UnmeasurableError
from echo.frontend.microbenchmark import Facts, excess, refuse, trial_of
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType
from echo.meter.trial import Trial, Variable
from tests.conftest import case_of

BATCH = 64


def training() -> TrainingGraph:
    words = mx.sym.Embedding(mx.sym.var("words"), input_dim=50, output_dim=32, name="embedding")
    hidden = mx.sym.FullyConnected(words, num_hidden=256, name="fc")
    hidden = mx.sym.Activation(hidden, act_type="tanh", name="tanh")
    return case_of(mx.sym.Dropout(hidden, name="drop"), {"words": (BATCH, 6)}).training


GRAPH = training()
FACTS = Facts.of(GRAPH)


def number(name: str) -> int:
    return next(k for k, node in enumerate(GRAPH.nodes) if node.name == name)


def trial(name: str, too_large: float = 1.0) -> tuple[Trial, float]:
    return trial_of(GRAPH, number(name), too_large, FACTS)


def test_a_light_forward_node_is_hot() -> None:
    found, scale = trial("tanh")
    assert (found.op, found.attrs["act_type"], found.inputs) == ("Activation", "tanh", (Variable((BATCH, 256)),))
    assert (found.hot, found.heavy, found.forward, scale) == (True, False, "", 1.0)
    assert found.bytes == 2 * 4 * BATCH * 256


def test_a_gradient_stands_beside_its_operator() -> None:
    found, _ = trial("fc_backward")
    assert found.forward == "FullyConnected"
    assert found.heavy
    assert not found.hot
    assert found.forward_inputs[1].shape == (256, 6 * 32)
    assert len(found.forward_inputs) == 3


def test_indices_stay_below_the_rows() -> None:
    found, _ = trial("embedding")
    assert isinstance(found.inputs[0], Variable)
    assert found.inputs[0].below == 50


def test_a_large_node_is_cut_along_its_batch() -> None:
    found, scale = trial("tanh", 4.0)
    assert found.inputs == (Variable((BATCH // 4, 256)),)
    assert scale == 4.0
    product, scale = trial("fc", 8.0)
    shapes = [item.shape for item in product.inputs if isinstance(item, Variable)]
    assert shapes == [(BATCH // 8, 6, 32), (256, 192), (256,)], "parameters stay as they are"
    assert scale == 8.0
    smallest, scale = trial("tanh", 1e9)
    assert (smallest.inputs, scale) == ((Variable((2, 256)),), BATCH / 2)


@pytest.mark.parametrize(("name", "reason"), [("drop", "Dropout is not known"), ("fc", ""), ("tanh", "")])
def test_what_may_run_alone(name: str, reason: str) -> None:
    node = GRAPH.nodes[number(name)]
    if not reason:
        refuse(GRAPH, node)
        return
    with pytest.raises(UnmeasurableError, match=reason):
        refuse(GRAPH, node)


@pytest.mark.parametrize(("op", "attrs"), [("LeakyReLU", {"act_type": "rrelu"}), ("RNN", {"p": "0.5"}), ("Custom", {})])
def test_random_numbers_and_foreign_code_are_refused(op: str, attrs: dict[str, str]) -> None:
    with pytest.raises(UnmeasurableError):
        refuse(GRAPH, GRAPH.nodes[number("tanh")].having(op=op, attrs=attrs))
    if op == "RNN":
        refuse(GRAPH, GRAPH.nodes[number("tanh")].having(op=op, attrs={"p": "0"}))


def test_how_much_too_large() -> None:
    at = number("tanh")
    assert excess(GRAPH, GRAPH.nodes[at]) == 1.0
    nodes = list(GRAPH.nodes)
    for place in (at, nodes[at].inputs[0].node):
        nodes[place] = nodes[place].having(outputs=(TensorType((BATCH << 12, 256)),))
    larger = replace(GRAPH, nodes=tuple(nodes))
    assert excess(larger, nodes[at]) == 2 * 4 * (BATCH << 12) * 256 / (16 << 20)


def test_what_moves_too_much_is_refused() -> None:
    at = number("tanh")
    nodes = [node.having(outputs=(TensorType((2, 1 << 28)),)) if k in (at, GRAPH.nodes[at].inputs[0].node) else node
             for k, node in enumerate(GRAPH.nodes)]  # fmt: skip
    large = replace(GRAPH, nodes=tuple(nodes))
    with pytest.raises(UnmeasurableError, match=r"Activation moves .* bytes, expected at most"):
        trial_of(large, at, 1e9, Facts.of(large))
