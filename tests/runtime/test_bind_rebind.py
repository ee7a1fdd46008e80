"""How an executor is bound again: with a new plan, with the old marks where they hold, or plainly."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

from benchmarks.models import SMALL
from echo.frontend.symbols import Binding, graph_of, infer_binding
from echo.ir.graph import Graph
from echo.plans.options import Options
from echo.runtime.bind import Rebinder
from echo.runtime.bind_plan import find_plan
from echo.system.threads import are_own

pytestmark = pytest.mark.usefixtures("cheap_planning")
MODEL = SMALL["lm"]()
GRAPH = graph_of(MODEL.symbol)
OPTIONS = Options(fuse=False, max_overhead=None)


def binding(part: int = 1) -> Binding:
    shapes = {name: (shape[0] // part, *shape[1:]) for name, shape in MODEL.shapes.items()}
    return infer_binding(MODEL.symbol, shapes, None, MODEL.grad_req())


def rebinder(record: Any = None, fails: bool = False) -> Rebinder:
    return Rebinder(GRAPH, mx.cpu(), lambda action, stock: stock() if fails else action(OPTIONS), record)


def planned() -> Graph:
    found = find_plan(GRAPH, binding, mx.cpu(), OPTIONS)
    assert found is not None
    assert found.graph != GRAPH
    return found.graph


def test_a_new_plan_is_recorded() -> None:
    plans: list[Any] = []
    found = rebinder(plans.append).replan(binding(2))
    assert found is not None
    base, graph = found
    assert base == GRAPH != graph
    (plan,) = plans
    assert plan.key.arguments[0].shape == binding(2).arg_shapes[0]
    assert rebinder(fails=True).replan(binding()) is None


def test_marks_hold_where_they_save_memory() -> None:
    assert rebinder().confirms(GRAPH, planned(), binding(2))
    assert not rebinder().confirms(GRAPH, GRAPH, binding(2)), "nothing is saved"
    assert not rebinder(fails=True).confirms(GRAPH, planned(), binding(2))


def test_the_training_graph_is_that_of_these_shapes() -> None:
    training = rebinder().differentiate(GRAPH, binding(2))
    data = next(node for node in training.nodes if node.original == GRAPH.arg_nodes[0])
    assert data.outputs[0].shape == binding(2).arg_shapes[0]


def test_its_binds_are_echos_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(mx.sym.Symbol, "bind", lambda symbol, *args: seen.append((are_own(), type(symbol), args)))
    rebinder().bind(GRAPH, mx.cpu(), [])
    rebinder().bind(MODEL.symbol, mx.cpu(), [])
    assert seen == [(True, mx.sym.Symbol, (mx.cpu(), []))] * 2
