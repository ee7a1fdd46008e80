"""What an executor was bound with: which of its parts a plan changed."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE
from echo.plans.decisions import mark
from echo.runtime.applied import AppliedPlan
from echo.runtime.bind import Rebinder


def network() -> mx.sym.Symbol:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="fc")
    hidden = mx.sym.BatchNorm(mx.sym.Dropout(mx.sym.tanh(hidden, name="tanh"), name="drop"), name="norm")
    return mx.sym.sigmoid(hidden, name="sigmoid")


SYMBOL = network()
GRAPH = graph_of(SYMBOL)
AT = {node.name: number for number, node in enumerate(GRAPH.nodes)}


def applied(bound: Graph, base: Graph = GRAPH) -> AppliedPlan:
    rebinder: Any = Rebinder(GRAPH, mx.cpu(), lambda action, stock: stock(), None)
    return AppliedPlan(GRAPH, base, bound, {"data": (4, 8)}, rebinder)


@pytest.mark.parametrize(
    ("names", "ops", "modes"),
    [
        ((), set(), set()),
        (("tanh",), {"tanh"}, set()),
        (("tanh", "sigmoid"), {"tanh", "sigmoid"}, set()),
        (("norm", "tanh"), {"BatchNorm", "tanh"}, {"BatchNorm"}),
    ],
)
def test_marked_operators_are_those_that_run_again(names: tuple[str, ...], ops: set[str], modes: set[str]) -> None:
    found = applied(mark(GRAPH, {AT[name]: [0] for name in names}, hook=True))
    assert found.marked == ops
    assert found.mode_dependent == modes
    assert not found.fuses
    assert not found.has_gradient_rules


def test_applied_graph_tells_fusion_and_exchanged_gradients() -> None:
    other = GRAPH.with_attrs({AT["tanh"]: {GRADIENT_ATTRIBUTE: "a>b:0"}})
    assert applied(other).has_gradient_rules
    assert applied(other, other).fuses


def test_variables_that_are_read_again_are_watched() -> None:
    assert applied(mark(GRAPH, {AT["sigmoid"]: [0]}, hook=True)).watch is None
    assert applied(mark(GRAPH, {AT["fc"]: [0]}, hook=True)).watch is not None


def test_all_are_watched_where_backward_may_repeat_a_pass() -> None:
    assert applied(mark(GRAPH, {AT["tanh"]: [0]}, hook=True)).watches_of_all == (None, None)
    assert None not in applied(mark(GRAPH, {AT["norm"]: [0]}, hook=True)).watches_of_all
