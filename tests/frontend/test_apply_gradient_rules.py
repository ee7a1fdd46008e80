"""Other gradients in a training graph are those that MXNet binds with the hook."""

from __future__ import annotations

from typing import Any, Mapping

import mxnet as mx
import pytest

from echo.frontend.apply_gradient_rules import apply_gradient_rules
from echo.frontend.capture import training_graph
from echo.ir.gradient_rules import gradient_rules, split_gradients
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, GradientRule
from echo.ir.training_graph import TrainingGraph
from tests.support.cases import Case, case_of


def structure(training: TrainingGraph) -> Any:
    return [(node.op, node.name, node.inputs, node.outputs, node.forward) for node in training.nodes]


def bound(case: Case, chosen: Mapping[int, GradientRule]) -> TrainingGraph:
    marks = {user: {GRADIENT_ATTRIBUTE: rule.text} for user, rule in chosen.items()}
    return training_graph(case.graph, case.binding, mx.cpu(), marks)


def dense() -> Case:
    hidden = mx.sym.var("data")
    for layer in range(2):
        hidden = mx.sym.FullyConnected(hidden, num_hidden=16, name=f"fc{layer}")
        hidden = mx.sym.Activation(hidden, act_type="sigmoid", name=f"sigmoid{layer}")
    return case_of(mx.sym.MakeLoss(mx.sym.sum(hidden)), {"data": (4, 8)}, "write")


def forked() -> Case:
    """Two convolutions read one map: the second gradient of it is computed apart, and later."""
    hidden = mx.sym.Convolution(mx.sym.var("data"), num_filter=16, kernel=(1, 1), name="before")
    hidden = mx.sym.Activation(hidden, act_type="relu", name="map")
    ends = [mx.sym.Convolution(hidden, num_filter=4, kernel=(1, 1), no_bias=True, name=name) for name in "ab"]
    return case_of(mx.sym.Group([mx.sym.sin(end) for end in ends]), {"data": (2, 8, 6, 6)}, "write")


def test_gradients_are_exchanged() -> None:
    case = dense()
    chosen = gradient_rules(case.training, True)
    assert chosen
    found = apply_gradient_rules(case.training, chosen)
    assert structure(found) == structure(bound(case, chosen)) != structure(case.training)
    assert found.gradient_rules == chosen


def test_a_gradient_in_two_nodes() -> None:
    case = forked()
    split = {case.training.nodes[number].user: rule for number, rule in split_gradients(case.training).items()}
    chosen = {user: rule for user, rule in split.items() if user is not None}
    assert chosen
    found, expected = apply_gradient_rules(case.training, chosen), bound(case, chosen)
    assert [(node.op, node.name) for node in found.nodes] == [(node.op, node.name) for node in expected.nodes]
    assert len(found.nodes) == len(case.training.nodes) + len(chosen)


@pytest.mark.parametrize("user", [0, 999])
def test_rule_for_no_gradient_changes_nothing(user: int) -> None:
    case = dense()
    (rule, *_) = gradient_rules(case.training, True).values()
    assert structure(apply_gradient_rules(case.training, {user: rule})) == structure(case.training)
