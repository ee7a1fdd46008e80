"""Equal operators that MXNet merges before it differentiates: found again by their structure."""

from __future__ import annotations

import mxnet as mx

from echo.ir.cse import common_subexpressions
from tests.conftest import case_of, model_case


def test_equal_operators_stand_for_each_other() -> None:
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="fc")
    first, second = mx.sym.tanh(x, name="first"), mx.sym.tanh(x, name="second")
    left, right = mx.sym.exp(first, name="left"), mx.sym.exp(second, name="right")
    other = mx.sym.tanh(x * 2.0, name="other")
    symbol = mx.sym.MakeLoss(mx.sym.sum(left * right + other))
    case = case_of(symbol, {"data": (4, 5)}, grad_req="write")
    nodes = case.graph.nodes
    names = {
        nodes[duplicate].name: nodes[kept].name
        for duplicate, kept in common_subexpressions(case.graph, case.training).items()
    }
    assert names == {"second": "first", "right": "left"}


def test_other_attributes_keep_operators_apart() -> None:
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="fc")
    with mx.AttrScope(__role__="one"):
        first = mx.sym.tanh(x, name="first")
    with mx.AttrScope(__role__="two"):
        second = mx.sym.tanh(x, name="second")
    case = case_of(mx.sym.MakeLoss(mx.sym.sum(first * second)), {"data": (4, 5)}, grad_req="write")
    assert common_subexpressions(case.graph, case.training) == {}


def test_every_operator_of_a_model_is_there_or_merged() -> None:
    case = model_case("nmt")
    there = {node.user for node in case.training.nodes if node.user is not None}
    operators = {number for number, node in enumerate(case.graph.nodes) if not node.is_variable}
    assert operators <= there | set(common_subexpressions(case.graph, case.training))
