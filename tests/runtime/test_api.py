"""What `echo.optimize`, `echo.plan` and `echo.frontier` take: options, ways to bind, and shapes of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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


def network_scores(name: str = "data") -> mx.sym.Symbol:
    hidden = mx.sym.var(name)
    for layer in range(3):
        hidden = mx.sym.tanh(mx.sym.FullyConnected(hidden, num_hidden=16, name=f"fc{layer}"), name=f"tanh{layer}")
    return hidden


def network(name: str = "data") -> mx.sym.Symbol:
    return mx.sym.sum(network_scores(name))


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
        ({"type_dict": {"dat": "float32"}, **SHAPES}, OptionError, "type_dict: .* no array 'dat'; did you mean data"),
        (
            {"grad_req": {"fc_weight": "add"}, **SHAPES},
            OptionError,
            "grad_req: .* no array 'fc_weight'; did you mean .*fc0_weight",
        ),
        ({"grad_req": {"xyz": "add"}, **SHAPES}, OptionError, "grad_req: the symbol has no array 'xyz'$"),
        ({"data": mx.nd.zeros((8, 16))}, ShapeError, r"data: expected a shape such as \(128, 50\), got [^\n]+$"),
        ({"type_dict": [1], **SHAPES}, OptionError, r"type_dict: expected a mapping such as .*, got \[1\]"),
        ({"type_dict": {"data": None}, **SHAPES}, OptionError, "type_dict: expected a numpy type for 'data', got None"),
        ({"grad_req": 5, **SHAPES}, OptionError, "grad_req: expected write, add, null, or .*, got 5"),
        ({"grad_req": b"write", **SHAPES}, OptionError, "grad_req: expected write, add, null, or .*, got b'write'"),
        ({"grad_req": ["write"], **SHAPES}, OptionError, "grad_req: expected .* for each argument, got 1 for 7 argum"),
        ({"plan": [5], **SHAPES}, OptionError, "plan: expected a Plan or several, as of echo.load_plan, got 5"),
        ({"keep": {"fc0": 1}, **SHAPES}, OptionError, "keep: expected names or patterns, got {'fc0': 1}"),
        ({"grad_req": "null", **SHAPES}, UnsupportedError, "nothing is trained, so there is nothing to plan"),
    ],
)
def test_invalid_argument_raises_its_error(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        echo.plan(network(), **given)


def test_plans_stand_alone() -> None:
    plan = echo.plan(network(), **SHAPES)
    with pytest.raises(OptionError, match="plan: it is applied as it is, expected no option 'policy' next to it"):
        echo.optimize(network(), **{"plan": plan, "policy": "echo"})
    assert echo.optimize(network(), **{"plan": plan, "strict": True}).options.plans == (plan,)


@pytest.mark.parametrize("name", ["memory_budget", "max_overhead", "plan"])
def test_a_frontier_covers_budgets(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}: a frontier covers all budgets and bounds"):
        echo.frontier(network(), budgets=3, **{name: None}, **SHAPES)


def test_inputs_are_not_trained_unless_asked() -> None:
    requests = [argument.request for argument in echo.plan(network(), **SHAPES).key.arguments]
    assert requests == ["null", *["write"] * 6]
    asked = echo.plan(network(), **{"grad_req": "add", **SHAPES}).key.arguments
    assert {argument.request for argument in asked} == {"add"}


def test_label_without_a_shape_is_not_trained() -> None:
    symbol = mx.sym.SoftmaxOutput(network_scores(), name="softmax")
    arguments = dict(zip(symbol.list_arguments(), echo.plan(symbol, **SHAPES).key.arguments))
    assert arguments["softmax_label"].request == "null"
    assert {name for name, argument in arguments.items() if argument.request == "null"} == {"data", "softmax_label"}


def test_a_block_needs_the_shapes_of_its_inputs() -> None:
    with pytest.raises(OptionError, match="expected the shape of each input"):
        echo.plan(mx.gluon.nn.Dense(3))
    with pytest.raises(OptionError, match="expected a HybridBlock, got Sequential"):
        echo.plan(mx.gluon.nn.Sequential(), **SHAPES)
    assert echo.plan(mx.gluon.nn.Dense(3, in_units=16), **SHAPES).key.runner == "dynamic"


def clashing() -> mx.sym.Symbol:
    """Returns a network whose data is named like an option."""
    hidden = mx.sym.FullyConnected(mx.sym.var("keep"), num_hidden=4, name="fc")
    return mx.sym.LinearRegressionOutput(mx.sym.Activation(hidden, act_type="tanh"), mx.sym.var("label"))


def test_shape_of_an_array_named_like_an_option_is_given_in_shapes() -> None:
    plan = echo.plan(clashing(), shapes={"keep": (8, 4)}, label=(8, 4), keep=["fc"])
    assert plan.key.arguments[0].shape == (8, 4)


def test_shape_for_an_option_raises_an_error_that_names_shapes() -> None:
    with pytest.raises(OptionError, match=r"keep: expected names .*; shapes=\{'keep': ...\} gives the shape"):
        echo.plan(clashing(), keep=(8, 4), label=(8, 4))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"shapes": {"dta": (8, 4)}}, r"shapes: the symbol has no array 'dta'; did you mean data\?"),
        ({"shapes": {"data": (8, 4)}, "data": (8, 4)}, "shapes: 'data' is also given as a keyword, expected it once"),
        ({"shapes": [(8, 4)]}, r"shapes: expected a mapping such as \{'data': \(128, 50\)\}, got \[\(8, 4\)\]"),
        ({"shapes": {1: (8, 4)}}, "shapes: expected names of arrays, got 1"),
        ({"points": 3}, "points: this option is now 'budgets'"),
        ({"policy": "exact"}, "policy: expected one of .*, got 'exact'; 'exact' is now 'ilp'"),
        ({"exact": True, "fuse": "memory"}, "fuse: expected no 'memory' where every bit is kept"),
    ],
)
def test_bad_shapes_and_old_names_raise_option_errors(given: dict[str, Any], error: str) -> None:
    symbol = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4), mx.sym.var("label"))
    with pytest.raises(OptionError, match=error):
        echo.plan(symbol, **{"label": (8, 4), **given})


@pytest.mark.parametrize("function", [echo.optimize, echo.plan, echo.frontier, echo.profile, echo.enable])
def test_signatures_have_the_options_with_their_defaults(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    options = inspect.signature(echo.Options).parameters
    left_out = {"frontier": {"max_overhead", "max_time", "memory_budget", "plan", "verify"}, "profile": {"verify"}}
    assert options.keys() - parameters.keys() == left_out.get(function.__name__, set())
    for name in options.keys() & parameters.keys():
        assert parameters[name].default == options[name].default, name
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("name", ["verify", "plan"])
def test_option_that_a_function_does_not_take_is_named(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}: "):
        echo.frontier(network(), **{name: True}, **SHAPES)


def test_misspelt_option_names_those_that_the_function_takes() -> None:
    with pytest.raises(OptionError, match="unknown option 'max_overhed', expected one of policy, heavy, ") as raised:
        echo.frontier(network(), max_overhed=1, **SHAPES)
    assert not any(word in str(raised.value) for word in ("max_overhead", "memory_budget", "max_time", "did you"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compare": None}, "compare: expected some of echo, mirror, got None"),
        ({"compare": 5}, "compare: expected some of echo, mirror, got 5"),
        ({"run": "yes"}, "run: expected True or False, got 'yes'"),
        ({"run": None}, "run: expected True or False, got None"),
        ({"budgets": None}, "budgets: expected a number from 2 to 100, got None"),
    ],
)
def test_profile_with_a_bad_argument_names_it(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        echo.profile(network(), **given, **SHAPES)


@pytest.mark.parametrize(("value", "got"), [(None, "None"), ("model.json", "str"), (mx.nd.zeros((2,)), ".*NDArray")])
def test_value_that_is_no_model_is_named_by_its_type(value: Any, got: str) -> None:
    with pytest.raises(OptionError, match=f"expected a Symbol or a gluon Block of mxnet, got {got}$"):
        echo.optimize(value)
