"""What `echo.optimize`, `echo.plan` and `echo.frontier` take: options, ways to bind, and shapes of arguments."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

import echo
from echo.errors import OptionError, ShapeError, UnsupportedError
from echo.frontend.symbols import graph_of, symbol_of
from echo.ir.op_spec import PLAN_ATTRIBUTE
from echo.plans.decisions import mark
from echo.runtime.bind import OptimizedSymbol

pytestmark = pytest.mark.usefixtures("cheap_planning")
SHAPES = {"data": (8, 16)}


def network(name: str = "data") -> mx.sym.Symbol:
    hidden = mx.sym.var(name)
    for layer in range(3):
        hidden = mx.sym.tanh(mx.sym.FullyConnected(hidden, num_hidden=16, name=f"fc{layer}"), name=f"tanh{layer}")
    return mx.sym.sum(hidden)


def test_shapes_plan_at_once() -> None:
    assert echo.optimize(network()).plans == []
    (plan,) = echo.optimize(network(), **{"max_overhead": None, **SHAPES}).plans
    assert plan == echo.plan(network(), **{"max_overhead": None, **SHAPES})


def test_an_argument_may_have_the_name_of_an_option() -> None:
    found = echo.optimize(network("policy"), shapes={"policy": (8, 16)})
    assert isinstance(found, OptimizedSymbol)
    assert len(found.plans) == 1
    assert found.options.policy == "search"
    assert echo.optimize(network("policy"), **{"policy": "echo"}).options.policy == "echo"


def test_marks_of_an_earlier_plan_are_taken_off() -> None:
    graph = graph_of(network())
    marked = symbol_of(mark(graph, {3: [0]}, hook=True))
    assert PLAN_ATTRIBUTE in marked.tojson()
    assert PLAN_ATTRIBUTE not in echo.optimize(marked).tojson()
    assert echo.plan(marked, **SHAPES) == echo.plan(network(), **SHAPES)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"data": 5}, ShapeError, r"data: expected a shape such as \(128, 50\), got 5"),
        ({"data": ("a",)}, ShapeError, r"data: expected a shape such as \(128, 50\), got \('a',\)"),
        ({"dta": (8, 16)}, OptionError, "dta"),
        ({"policy": "magic", **SHAPES}, OptionError, "magic"),
        ({"ctx": "moon", **SHAPES}, OptionError, "ctx: expected a context of mxnet .* got 'moon'"),
        ({"type_dict": {"data": "int77"}, **SHAPES}, OptionError, "type_dict: expected a numpy type for 'data'"),
        ({"grad_req": "null", **SHAPES}, UnsupportedError, "nothing is trained, so there is nothing to plan"),
    ],
)
def test_invalid_argument_raises_its_error(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        echo.plan(network(), **given)


def test_plans_stand_alone() -> None:
    plan = echo.plan(network(), **SHAPES)
    with pytest.raises(OptionError, match="plan: it is applied as it is, expected no option 'policy' beside it"):
        echo.optimize(network(), **{"plan": plan, "policy": "echo"})
    assert echo.optimize(network(), **{"plan": plan, "strict": True}).options.plans == (plan,)


@pytest.mark.parametrize("name", ["memory_budget", "max_overhead", "plan"])
def test_a_frontier_covers_budgets(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}: a frontier covers all budgets and bounds"):
        echo.frontier(network(), budgets=3, **{name: None}, **SHAPES)


def test_inputs_are_not_trained_unless_asked() -> None:
    requests = [argument.request for argument in echo.plan(network(), **SHAPES).subject.arguments]
    assert requests == ["null", *["write"] * 6]
    asked = echo.plan(network(), **{"grad_req": "add", **SHAPES}).subject.arguments
    assert {argument.request for argument in asked} == {"add"}


def test_a_block_needs_the_shapes_of_its_inputs() -> None:
    with pytest.raises(OptionError, match="expected the shape of each input"):
        echo.plan(mx.gluon.nn.Dense(3))
    with pytest.raises(OptionError, match="expected a HybridBlock, got Sequential"):
        echo.plan(mx.gluon.nn.Sequential(), **SHAPES)
    assert echo.plan(mx.gluon.nn.Dense(3, in_units=16), **SHAPES).subject.runner == "dynamic"
