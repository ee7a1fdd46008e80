"""Operators that may not run twice stay as they are, and the graph around them is planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import mxnet as mx
import pytest

import echo
from echo.errors import OptionError
from tests.support.small_network import SHAPES, check_identical

Symbol = mx.sym.Symbol
pytestmark = pytest.mark.usefixtures("cheap_planning")


@mx.operator.register("echo_test_double")
class _DoubleProperty(mx.operator.CustomOpProp):  # type: ignore[misc]
    def list_arguments(self) -> list[str]:
        return ["data"]

    def create_operator(self, *_: Any) -> mx.operator.CustomOp:
        return _Double()


class _Double(mx.operator.CustomOp):  # type: ignore[misc]
    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


def surrounded(region: Callable[[Symbol], Symbol]) -> Symbol:
    """A foreign region between light operators on both sides."""
    with mx.name.NameManager():
        hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="fc0")
        for layer in range(3):
            hidden = mx.sym.tanh(hidden, name=f"before{layer}") * mx.sym.sigmoid(hidden)
        hidden = region(hidden)
        for layer in range(3):
            hidden = mx.sym.tanh(hidden, name=f"after{layer}") * mx.sym.sigmoid(hidden)
        scores = mx.sym.FullyConnected(hidden, num_hidden=10, name="scores")
        return mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="softmax")


def custom(hidden: Symbol) -> Symbol:
    return mx.sym.Custom(hidden, op_type="echo_test_double", name="foreign")


def foreach(hidden: Symbol) -> Symbol:
    steps = mx.sym.reshape(hidden, shape=(4, 4, 64))

    def body(step: Symbol, state: Symbol) -> tuple[Symbol, Symbol]:
        new = mx.sym.tanh(step + state)
        return new, new

    outputs, _ = mx.sym.contrib.foreach(body, steps, mx.sym.zeros((4, 64)), name="foreign")
    return mx.sym.reshape(outputs, shape=(16, 64))


FOREIGN = {"Custom": custom, "foreach": foreach}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_foreign_regions_are_left_alone(kind: str) -> None:
    plan = check_identical(surrounded(FOREIGN[kind]), SHAPES, label=10)
    recomputed = {decision.name for decision in plan.recomputed}
    assert not any(name.startswith("foreign") for name in recomputed)
    assert any(name.startswith("before") for name in recomputed)
    assert any(name.startswith("after") for name in recomputed)


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_regions_cannot_be_insisted_on(kind: str) -> None:
    (op,) = {node["op"] for node in json.loads(surrounded(FOREIGN[kind]).tojson())["nodes"]} & {"Custom", "_foreach"}
    with pytest.raises(OptionError, match=f"{op} is not known to be safe to run twice"):
        echo.plan(surrounded(FOREIGN[kind]), recompute=op, **SHAPES)


def test_stateful_recurrence_is_left_alone() -> None:
    def region(hidden: Symbol) -> Symbol:
        steps = mx.sym.reshape(hidden, shape=(4, 4, 64))
        state = [mx.sym.zeros((1, 4, 64)), mx.sym.zeros((1, 4, 64))]
        output = mx.sym.RNN(
            steps, mx.sym.var("rnn_parameters"), *state, state_size=64, num_layers=1, mode="lstm", name="foreign"
        )
        return mx.sym.reshape(output, shape=(16, 64))

    plan = check_identical(surrounded(region), SHAPES, label=10)
    assert "foreign" not in {decision.name for decision in plan.recomputed}
    assert any(decision.name.startswith("before") for decision in plan.recomputed)
