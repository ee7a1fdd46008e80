"""Derived graphs: a CachedOp's by its own rules, and gradient rules as MXNet binds them with the hook.

`tests/estimators/test_runners.py` holds the bytes against MXNet's CachedOp.
"""

from __future__ import annotations

from typing import Any, Mapping

import mxnet as mx
import pytest

from echo.frontend.capture import training_graph
from echo.frontend.derived_graphs import accumulations, apply_gradient_rules, as_cached
from echo.ir.gradient_rules import gradient_rules, split_gradients
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, GradientRule
from echo.ir.training_graph import Runner, TrainingGraph
from tests.support.cases import Case, case_of, special_case


@pytest.mark.parametrize("runner", [Runner.STATIC, Runner.DYNAMIC])
def test_outputs_are_not_its_own_and_gradients_of_outputs_not_copied(runner: str) -> None:
    training = special_case("two outputs").training
    cached = as_cached(training, runner, 16)
    assert cached.runner == runner
    heads = cached.outputs[: cached.num_forward_outputs]
    assert all(entry.index in cached.nodes[entry.node].external for entry in heads)
    copies = [sum(node.op == "_identity_with_attr_like_rhs" for node in each.nodes) for each in (training, cached)]
    assert copies[1] < copies[0]


def test_a_dynamic_cached_op_adds_nothing_in_place() -> None:
    training = special_case("many readers").training
    assert any(training.accumulations)
    chunk = list(range(training.first_entry[-1]))
    assert accumulations(as_cached(training, Runner.DYNAMIC, 16), chunk) == ()
    apart = accumulations(training, chunk)
    assert training.runner == Runner.EXECUTOR
    assert len(apart) == len(training.accumulations)
    assert not any(apart), "what shares no memory is not added in place"
    assert all(accumulations(training, [0] * len(chunk))), "and what shares it is"


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
    split = {case.training.nodes[number].original: rule for number, rule in split_gradients(case.training).items()}
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
