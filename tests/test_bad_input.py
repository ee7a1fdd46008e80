"""What cannot be planned: each error says what was expected and what was got, or the user's graph stays as it is."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from benchmarks.models import MODELS, SMALL, random_values
from echo import native
from echo.errors import BudgetError, EchoError, GraphError, NativeError, OptionError, ShapeError, UnsupportedError
from echo.frontend.capture import planned_megabytes
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, symbol_of
from echo.ir.op_spec import PLAN_ATTRIBUTE
from echo.passes.analysis import Differentiate
from echo.plans.decisions import mark
from echo.runtime import bind_plan
from echo.system.threads import ONCE
from tests.training import assert_alive, assert_close, assert_same, bind, random_arrays, train

Symbol = mx.sym.Symbol
ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("cheap_planning")
SHAPES = {"data": (16, 20), "label": (16,)}


def network(layers: int = 3) -> Symbol:
    with mx.name.NameManager():
        hidden = mx.sym.var("data")
        for layer in range(layers):
            hidden = mx.sym.FullyConnected(hidden, num_hidden=64, name=f"fc{layer}")
            hidden = mx.sym.tanh(mx.sym.LayerNorm(hidden, name=f"norm{layer}"), name=f"tanh{layer}")
            hidden = mx.sym.sigmoid(hidden, name=f"gate{layer}") * hidden
        return mx.sym.SoftmaxOutput(
            mx.sym.FullyConnected(hidden, num_hidden=10, name="scores"), mx.sym.var("label"), name="softmax"
        )


def trained(symbol: Symbol, shapes: dict[str, tuple[int, ...]], **limits: int) -> dict[str, Any]:
    values = random_arrays(symbol, shapes, limits=limits)
    requests = {name: "null" if name in shapes else "write" for name in symbol.list_arguments()}
    return train(bind(symbol, values, requests))


def check_identical(symbol: Symbol, shapes: dict[str, tuple[int, ...]], **limits: int) -> echo.Plan:
    """Optimizes without a bound on time, trains, compares; the plan."""
    optimized = echo.optimize(symbol, max_overhead=None, fuse=False)
    expected = trained(symbol, shapes, **limits)
    assert_alive(expected)
    assert_same(trained(optimized, shapes, **limits), expected)
    assert len(optimized.plans) == 1
    return optimized.plans[0]


# MXNet -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.8.0", "2.0.0b1", "1.9.10"])
def test_another_mxnet_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(mx, "__version__", version)
    for call in (echo.plan, echo.optimize):
        with pytest.raises(UnsupportedError, match=re.escape(f"expected mxnet 1.9.1, got {version}")):
            call(network(), **SHAPES)


@pytest.mark.parametrize("value", [None, 3, "symbol", np.zeros(3), mx.nd.zeros(3), [network()], network().tojson()])
def test_what_is_no_symbol_is_refused(value: Any) -> None:
    for call in (echo.plan, echo.optimize):
        with pytest.raises(OptionError, match=r"expected a Symbol .*got .*" + type(value).__name__):
            call(value, data=(3,))


# Nothing to train ------------------------------------------------------------------------------------------------


def test_nothing_is_trained() -> None:
    with pytest.raises(UnsupportedError, match="no argument needs a gradient"):
        echo.plan(network(), grad_req="null", **SHAPES)
    everything = dict(zip(network().list_arguments(), network().infer_shape(**SHAPES)[0]))
    with pytest.raises(UnsupportedError, match="no argument needs a gradient"):
        echo.plan(network(), **everything)


def test_binding_without_gradients_leaves_the_graph_alone() -> None:
    optimized = echo.optimize(network())
    optimized.simple_bind(mx.cpu(), grad_req="null", **SHAPES)
    args = {name: mx.nd.array(value) for name, value in random_arrays(network(), SHAPES).items()}
    optimized.bind(mx.cpu(), args)
    optimized.bind(mx.cpu(), args, {}, "write")
    optimized.bind(mx.cpu(), args, {name: mx.nd.zeros(array.shape) for name, array in args.items()}, "null")
    assert optimized.plans == []


def test_symbol_without_arguments() -> None:
    constant = mx.sym.zeros((2, 3)) + 1
    with pytest.raises(UnsupportedError, match="no argument needs a gradient"):
        echo.plan(constant)
    executor = echo.optimize(constant).bind(mx.cpu(), {})
    assert executor.forward()[0].asnumpy().tolist() == [[1.0] * 3] * 2


# Shapes ----------------------------------------------------------------------------------------------------------


def test_unknown_shapes_are_named() -> None:
    with pytest.raises(ShapeError, match=r"the shapes of .*'data'.* are unknown"):
        echo.plan(network())
    with pytest.raises(ShapeError, match=r"the shapes of .*'data'.*'fc0_weight'.* are unknown.*\['label'\]"):
        echo.plan(network(), label=(16,))
    for shape in ((0, 20), (16, -1)):
        with pytest.raises(ShapeError, match=r"data: expected sizes of 1 or more .0 and -1 stand for unknown"):
            echo.plan(network(), data=shape, label=(16,))
    with pytest.raises(ShapeError, match=r"^MXNet cannot infer the shapes from .*\(-5, 20\).*: Check failed: [^\n]*-5"):
        echo.plan(network(), data=(-5, 20), label=(16,))


def test_contradicting_shapes() -> None:
    with pytest.raises(ShapeError, match="fc1"):
        echo.plan(network(), fc1_weight=(3, 3), **SHAPES)


@pytest.mark.parametrize("value", [8, "8,20", None, ("a",), 2.5, "32", (16, 20.5), (16, 20.0), (True, 20)])
def test_what_is_no_shape_is_refused(value: Any) -> None:
    with pytest.raises(ShapeError, match=r"data: expected a shape such as \(128, 50\), got " + re.escape(repr(value))):
        echo.plan(network(), data=value)


@pytest.mark.parametrize("value", [(2**31, 2), (2**16, 2**16), (10**400,), (2**31, 0)])
def test_shapes_that_mxnet_cannot_count(value: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"data: expected a shape of less than 2\*\*31 elements, got \("):
        echo.plan(network(), data=value, label=(16,))


def test_shapes_of_nothing_are_refused() -> None:
    with pytest.raises(OptionError, match="'dta'"):
        echo.plan(network(), dta=(16, 20))


def test_binding_with_unknown_shapes_fails_as_mxnet_does() -> None:
    def failure(symbol: Symbol) -> Exception:
        with pytest.raises((RuntimeError, mx.MXNetError, EchoError)) as caught:
            symbol.simple_bind(mx.cpu(), grad_req="write", label=(16,))
        return caught.value

    assert type(failure(echo.optimize(network()))) is type(failure(network()))
    with pytest.raises(ShapeError, match="'data'"):
        echo.optimize(network(), strict=True).simple_bind(mx.cpu(), grad_req="write", label=(16,))


# Budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budget", ["abc", "", "GB", "6 XB", "-6GB", "0", 0, -1, -0.5, 0.0, float("nan"), float("inf"), True, [6], b"6GB"]
)
def test_budgets_that_are_no_size(budget: Any) -> None:
    for call in (echo.plan, echo.optimize):
        with pytest.raises(OptionError, match=re.escape(repr(budget))):
            call(network(), memory_budget=budget, **SHAPES)


def least(message: str) -> int:
    found = re.search(r"the least that can be reached is ([\d,]+) bytes", message)
    assert found, message
    return int(found.group(1).replace(",", ""))


@pytest.mark.parametrize(("name", "fuse"), [("lm", False), ("lm", True), ("resnet50_v2", False)])
def test_budget_below_what_can_be_reached(name: str, fuse: bool) -> None:
    model = SMALL[name]()
    with pytest.raises(BudgetError, match="memory_budget of 1,000 bytes cannot be met") as caught:
        echo.plan(model.symbol, memory_budget=1000, fuse=fuse, **model.shapes)
    reachable = least(str(caught.value))
    assert caught.value.reachable == reachable
    assert caught.value.budget == 1000
    assert re.search(r"Held at that peak: weights [\d.]+ [kM]B", str(caught.value))
    stock = echo.plan(model.symbol, max_overhead=0.0, **model.shapes).before.total
    assert reachable < stock
    plan = echo.plan(model.symbol, memory_budget=reachable, fuse=fuse, **model.shapes)
    assert plan.after.total <= reachable
    values = random_values(model)
    optimized = echo.optimize(model.symbol, memory_budget=reachable, fuse=fuse)
    expected = train(bind(model.symbol, values, model.grad_req()), steps=2)
    compare = assert_close if fuse else assert_same
    compare(train(bind(optimized, values, model.grad_req()), steps=2), expected)


def test_budget_is_checked_when_the_symbol_is_bound() -> None:
    optimized = echo.optimize(network(), memory_budget=1000)
    with pytest.raises(BudgetError, match="cannot be met"):
        optimized.simple_bind(mx.cpu(), grad_req="write", **SHAPES)
    with pytest.raises(BudgetError, match="cannot be met"):
        echo.optimize(network(), memory_budget=1000, **SHAPES)


def test_budgets_in_every_spelling_mean_the_same() -> None:
    model = SMALL["lm"]()
    stock = echo.plan(model.symbol, max_overhead=0.0, **model.shapes).before.total
    wanted = int(0.85 * stock)
    plans = [
        echo.plan(model.symbol, memory_budget=budget, **model.shapes)
        for budget in (wanted, float(wanted), str(wanted), f"{wanted}B", f" {wanted} b ", wanted / stock)
    ]
    assert all(plan.after.total <= wanted for plan in plans)
    assert {plan.after.total for plan in plans[:5]} == {plans[0].after.total}
    enough = echo.plan(model.symbol, memory_budget="1TB", **model.shapes)
    assert enough.overhead == 0.0
    assert echo.plan(model.symbol, memory_budget=1.0, **model.shapes).overhead == 0.0


def test_budget_that_needs_no_plan_costs_nothing() -> None:
    plan = echo.plan(network(), memory_budget="1GB", **SHAPES)
    assert plan.recomputed == ()


# Options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["keep", "recompute"])
@pytest.mark.parametrize("pattern", ["nothing", "tanh9", "Convolution", "TANH0", "[", ""])
def test_patterns_that_match_nothing(option: str, pattern: str) -> None:
    wanted = rf"{option}: {re.escape(repr(pattern))} matches no node.*FullyConnected, LayerNorm"
    with pytest.raises(OptionError, match=wanted):
        echo.plan(network(), **{option: ["tanh1", pattern]}, **SHAPES)
    optimized = echo.optimize(network(), **{option: pattern})
    with pytest.raises(OptionError, match=wanted):
        optimized.simple_bind(mx.cpu(), grad_req="write", **SHAPES)


def test_variables_are_no_nodes_to_keep() -> None:
    with pytest.raises(OptionError, match="'fc0_weight' matches no node"):
        echo.plan(network(), keep="fc0_weight", **SHAPES)


def test_keep_and_recompute_contradict_each_other() -> None:
    with pytest.raises(OptionError, match=r"'tanh1' matches both keep 'tanh\*' and recompute 'tanh1'"):
        echo.plan(network(), keep="tanh*", recompute="tanh1", **SHAPES)


@pytest.mark.parametrize(
    ("name", "reason"), [("softmax", "an output of the symbol"), ("SoftmaxOutput", "an output of the symbol")]
)
def test_what_cannot_be_recomputed(name: str, reason: str) -> None:
    with pytest.raises(OptionError, match=rf"'softmax' \(SoftmaxOutput\) cannot be recomputed: .*{reason}"):
        echo.plan(network(), recompute=name, **SHAPES)


@pytest.mark.parametrize("option", ["keep", "recompute"])
@pytest.mark.parametrize("value", [3, [3], None, {"tanh0": 1.5}.items()])
def test_patterns_that_are_no_names(option: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"{option}: expected names or patterns"):
        echo.optimize(network(), **{option: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"polcy": "search"}, "unknown option 'polcy', expected one of policy, max_overhead"),
        ({"dta": (3, 4)}, r"unknown option 'dta', .*, or the name of an array of the symbol; did you mean data\?"),
        ({"policy": "magic"}, "policy: expected one of search, echo, .* got 'magic'"),
        ({"policy": 3}, "policy: expected one of search, echo, .* got 3"),
        ({"memory_budget": 10**400}, "memory_budget: expected whole bytes"),
        ({"max_planning": 10**400}, "max_planning: expected seconds"),
        ({"max_overhead": 10**400}, "max_overhead: expected a fraction"),
        ({"max_overhead": -0.1}, "max_overhead: expected a fraction .* got -0.1"),
        ({"max_overhead": "10%"}, "max_overhead: expected a fraction .* got '10%'"),
        ({"max_overhead": float("nan")}, "max_overhead: expected a fraction .* got nan"),
        ({"max_overhead": True}, "max_overhead: expected a fraction .* got True"),
        ({"fuse": "yes"}, "fuse: expected True, False or 'memory', got 'yes'"),
        ({"strict": 2}, "strict: expected True or False, got 2"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    for call in (echo.plan, echo.optimize):
        with pytest.raises(OptionError, match=message):
            call(network(), **options, **SHAPES)


def test_option_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="unknown option"):
        echo.optimize(network(), budget=3)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"grad_req": "wrte"}, OptionError),
        ({"grad_req": {"fc0_weight": "twice"}}, OptionError),
        ({"grad_req": ["write"]}, OptionError),
        ({"ctx": "toaster"}, OptionError),
        ({"type_dict": {"data": "float99"}}, OptionError),
    ],
)
def test_ways_to_bind_that_make_no_sense(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        echo.plan(network(), **given, **SHAPES)


# Errors of our own -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [GraphError("surprise"), RuntimeError("surprise"), mx.MXNetError("surprise")])
def test_an_error_inside_echo_costs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    expected = trained(network(), SHAPES, label=10)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Differentiate, "run", fail)
    optimized = echo.optimize(network())
    with caplog.at_level(logging.WARNING, "echo"):
        assert_same(trained(optimized, SHAPES, label=10), expected)
    (record,) = caplog.records
    assert "surprise" in record.getMessage()
    assert optimized.plans == []
    with pytest.raises(EchoError, match="surprise"):
        trained(echo.optimize(network(), strict=True), SHAPES, label=10)
    with pytest.raises(EchoError, match="surprise"):
        echo.plan(network(), **SHAPES)


# Graphs with foreign regions -------------------------------------------------------------------------------------


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


# Graphs of unusual form ------------------------------------------------------------------------------------------


def test_a_variable_alone() -> None:
    variable = mx.sym.var("data")
    optimized = echo.optimize(variable)
    expected = train(bind(variable, {"data": np.ones((2, 3), "float32")}))
    assert_same(train(bind(optimized, {"data": np.ones((2, 3), "float32")})), expected)
    assert all(plan.changes_nothing for plan in optimized.plans)


def test_one_operator() -> None:
    symbol = mx.sym.tanh(mx.sym.var("data"), name="tanh")
    optimized = echo.optimize(symbol, max_overhead=None)
    values = random_arrays(symbol, {"data": (4, 5)})
    assert_same(train(bind(optimized, values)), train(bind(symbol, values)))
    assert optimized.plans[-1].changes_nothing
    assert echo.plan(symbol, data=(4, 5), grad_req="write").recomputed == ()


def test_one_operator_on_a_scalar() -> None:
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(mx.sym.var("data"))))
    optimized = echo.optimize(symbol, max_overhead=None)
    values = random_arrays(symbol, {"data": (1,)})
    assert_same(train(bind(optimized, values)), train(bind(symbol, values)))


@pytest.fixture
def numpy_shapes() -> Iterator[None]:
    """0 is a size there, not "unknown"."""
    before = mx.util.set_np_shape(True)
    yield
    mx.util.set_np_shape(before)


@pytest.mark.usefixtures("numpy_shapes")
def test_arrays_without_elements() -> None:
    data = mx.sym.var("data")
    hidden = data
    for layer in range(3):
        hidden = mx.sym.tanh(hidden, name=f"tanh{layer}") * mx.sym.sigmoid(hidden)
    empty = mx.sym.tanh(mx.sym.slice(hidden, begin=(2,), end=(2,), name="empty"), name="nothing")
    symbol = mx.sym.Group([mx.sym.concat(mx.sym.square(empty), hidden, dim=0), mx.sym.sum(mx.sym.square(hidden))])
    # stock MXNet binds such a graph and fails to run it
    plan = echo.plan(symbol, data=(64, 30), grad_req="write", max_overhead=None)
    recomputed = {decision.name for decision in plan.recomputed}
    assert recomputed
    assert not recomputed & {"nothing", "empty"}
    for name in ("nothing", "empty"):
        with pytest.raises(OptionError, match="an array without elements"):
            echo.plan(symbol, data=(64, 30), grad_req="write", recompute=name)


@pytest.mark.usefixtures("numpy_shapes")
def test_a_batch_without_elements() -> None:
    symbol = mx.sym.sum(mx.sym.square(mx.sym.tanh(mx.sym.var("data") * mx.sym.var("weight"))))
    values = {"data": np.zeros((0, 4), "float32"), "weight": np.zeros((0, 4), "float32")}
    optimized = echo.optimize(symbol, max_overhead=None)
    assert_same(train(bind(optimized, values)), train(bind(symbol, values)))
    assert echo.plan(symbol, grad_req="write", data=(0, 4), weight=(0, 4)).changes_nothing


def test_nodes_of_the_same_name() -> None:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="fc")
    for _ in range(4):
        hidden = mx.sym.tanh(hidden, name="same") * mx.sym.sigmoid(hidden, name="same")
    scores = mx.sym.FullyConnected(hidden, num_hidden=10, name="scores")
    symbol = mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="softmax")
    plan = check_identical(symbol, SHAPES, label=10)
    assert "same" in {decision.name for decision in plan.recomputed}
    assert len({decision.node for decision in plan.recomputed}) > 2
    everything = echo.plan(symbol, recompute="same", **SHAPES)
    assert len([decision for decision in everything.recomputed if decision.name == "same"]) == 8


def test_nodes_without_names_and_with_strange_ones() -> None:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="n7")
    for name in ("n12", "n0_echo", "größe, (0)", "a b\tc", "Op:x, Name=y", "__echo_recompute__"):
        hidden = mx.sym.tanh(hidden, name=name) * mx.sym.sigmoid(hidden, name=f"{name}_mirror")
    scores = mx.sym.FullyConnected(hidden, num_hidden=10, name="n1")
    symbol = mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="")
    assert len(check_identical(symbol, SHAPES, label=10).recomputed) > 3


def test_variables_of_the_same_name() -> None:
    first, second = mx.sym.var("same", shape=(8, 30)), mx.sym.var("same", shape=(8, 30))
    hidden = mx.sym.tanh(first * 2) * mx.sym.sigmoid(second)
    symbol = mx.sym.sum(mx.sym.square(mx.sym.tanh(hidden)))

    def run(symbol: Symbol) -> list[Any]:
        arrays = [mx.nd.array(np.random.RandomState(seed).normal(0, 1, (8, 30))) for seed in (0, 1)]
        gradients = [mx.nd.zeros((8, 30)) for _ in arrays]
        executor = symbol.bind(mx.cpu(), arrays, gradients)
        executor.forward(is_train=True)
        executor.backward(mx.nd.ones((1,)))
        return [executor.outputs[0].asnumpy(), *(gradient.asnumpy() for gradient in gradients)]

    for got, expected in zip(run(echo.optimize(symbol, max_overhead=None)), run(symbol)):
        assert got.tobytes() == expected.tobytes()


def test_groups() -> None:
    """Heads that are inner maps too, one of them twice, and a variable among them."""
    with mx.name.NameManager():
        data = mx.sym.var("data")
        hidden = mx.sym.FullyConnected(data, num_hidden=64, name="fc")
        maps = [hidden]
        for layer in range(5):
            maps.append(mx.sym.tanh(maps[-1], name=f"tanh{layer}") * mx.sym.sigmoid(maps[-1], name=f"gate{layer}"))
        loss = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(maps[-1]), name="sum"))
        symbol = mx.sym.Group([maps[2], loss, maps[2], mx.sym.Group([maps[-1], mx.sym.BlockGrad(maps[3])])])
    values = random_arrays(symbol, {"data": (16, 20)})
    optimized = echo.optimize(symbol, max_overhead=None)
    assert optimized.list_outputs() == symbol.list_outputs()
    assert_same(train(bind(optimized, values)), train(bind(symbol, values)))
    names = [decision.name for decision in optimized.plans[-1].recomputed]
    assert names
    assert "_mul1" not in names  # a head


def test_several_outputs_of_one_node_as_heads() -> None:
    with mx.name.NameManager():
        hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64), name="hidden")
        parts = mx.sym.SliceChannel(mx.sym.sigmoid(hidden) * hidden, num_outputs=4, name="parts")
        symbol = mx.sym.Group([parts[1], mx.sym.square(mx.sym.tanh(parts[3])), parts[0]])
    values = random_arrays(symbol, {"data": (16, 20)})
    optimized = echo.optimize(symbol, max_overhead=None)
    assert_same(train(bind(optimized, values)), train(bind(symbol, values)))


def test_symbol_optimized_twice() -> None:
    once = echo.optimize(network(), max_overhead=None, fuse=False)
    twice = echo.optimize(once, max_overhead=None, fuse=False)
    assert twice.tojson() == network().tojson()
    expected = trained(network(), SHAPES, label=10)
    assert_same(trained(twice, SHAPES, label=10), expected)
    assert_same(trained(once, SHAPES, label=10), expected)
    assert once.plans == twice.plans
    other = echo.optimize(twice, max_overhead=0.0)
    trained(other, SHAPES, label=10)
    assert other.plans[-1].overhead == 0.0
    assert once.options.max_overhead is None


@pytest.mark.parametrize("way", ["attribute", "environment"])
def test_graphs_that_mirror_already(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "environment":
        monkeypatch.setenv("MXNET_BACKWARD_DO_MIRROR", "1")
        symbol = network()
    else:
        with mx.AttrScope(force_mirroring="True"):
            hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="fc"), name="tanh")
            hidden = mx.sym.sigmoid(hidden, name="gate") * hidden
        for layer in range(4):
            hidden = mx.sym.tanh(hidden, name=f"tanh{layer}") * mx.sym.sigmoid(hidden)
        scores = mx.sym.FullyConnected(hidden, num_hidden=10, name="scores")
        symbol = mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="softmax")
    optimized = echo.optimize(symbol, max_overhead=None, fuse=False)
    assert_same(trained(optimized, SHAPES, label=10), trained(symbol, SHAPES, label=10))
    plan = optimized.plans[-1]
    assert plan.after.planned <= plan.before.planned


def test_a_marked_graph_is_planned_afresh() -> None:
    """A symbol that was saved from a marked graph."""
    graph = graph_of(network())
    tanh = [number for number, node in enumerate(graph.nodes) if node.op == "tanh"]
    marked = symbol_of(mark(graph, {number: [0] for number in tanh}, hook=True))
    optimized = echo.optimize(marked, keep="tanh", max_overhead=None, fuse=False)
    assert_same(trained(optimized, SHAPES, label=10), trained(network(), SHAPES, label=10))
    assert "tanh" not in {decision.op for decision in optimized.plans[-1].recomputed}
    values = random_arrays(network(), SHAPES, limits={"label": 10})
    assert "Op:tanh, Name=tanh0_echo" not in bind(optimized, values).debug_str()


@pytest.mark.filterwarnings("ignore:Cannot decide type")  # of SymbolBlock
@pytest.mark.parametrize("mark", ["0", "7", "0@9999", "nonsense"])
def test_marks_in_the_users_graph_change_nothing(mark: str, caplog: pytest.LogCaptureFixture) -> None:
    """As of a symbol that was saved from a planned graph, perhaps by another version, in all ways to use it."""
    graph = graph_of(network())
    marks = {
        number: {PLAN_ATTRIBUTE: mark} for number, node in enumerate(graph.nodes) if node.op in ("tanh", "Dropout")
    }
    marked, expected = symbol_of(graph.with_attrs(marks)), trained(network(), SHAPES, label=10)
    with echo.enable(fuse=False):
        assert_same(trained(marked, SHAPES, label=10), expected)
        block = mx.gluon.SymbolBlock(marked, [mx.sym.var("data"), mx.sym.var("label")])
        block.initialize()
        block.hybridize(static_alloc=True)
        with mx.autograd.record():
            output = block(mx.nd.ones((16, 20)), mx.nd.zeros((16,)))
        output.backward()
        mx.nd.waitall()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_several_devices_are_left_alone() -> None:
    with mx.AttrScope(ctx_group="one"):
        hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="fc"))
    with mx.AttrScope(ctx_group="two"):
        symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(mx.sym.tanh(hidden) * hidden)))
    optimized = echo.optimize(symbol, max_overhead=None)
    optimized.simple_bind(mx.cpu(), group2ctx={"one": mx.cpu(0), "two": mx.cpu(1)}, data=(16, 20))
    assert optimized.plans == []


def test_sparse_gradients() -> None:
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=50, output_dim=16, sparse_grad=True, name="embedding")
    hidden = mx.sym.FullyConnected(words, num_hidden=64, name="fc")
    for layer in range(4):
        hidden = mx.sym.tanh(hidden, name=f"tanh{layer}") * mx.sym.sigmoid(hidden)
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(hidden)))

    def run(symbol: Symbol) -> dict[str, Any]:
        executor = symbol.simple_bind(mx.cpu(), data=(16, 5), grad_req={
            name: "null" if name == "data" else "write" for name in symbol.list_arguments()
        })  # fmt: skip
        for name, value in random_arrays(symbol, {"data": (16, 5)}, limits={"data": 50}).items():
            executor.arg_dict[name][:] = value
        assert executor.grad_dict["embedding_weight"].stype == "row_sparse"
        executor.forward(is_train=True)
        executor.backward()
        mx.nd.waitall()
        return {name: array.asnumpy() for name, array in executor.grad_dict.items() if array is not None}

    assert_same(run(echo.optimize(symbol, max_overhead=None)), run(symbol))


# The native libraries --------------------------------------------------------------------------------------------


BUILT = list(native.__path__)  # an editable install keeps them apart from the sources


def built(name: str) -> Path:
    return next(path for path in (Path(folder) / name for folder in BUILT) if path.is_file())


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder in the place of the one that holds the native libraries."""

    def forget() -> None:
        native.uninstall()
        native._load.cache_clear()
        native.planner_library.cache_clear()

    forget()
    folder = tmp_path / "native"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(native, "__path__", [str(folder)])
        yield folder
        native._load.cache_clear()
        native.planner_library.cache_clear()
    assert install_hook() == ""


def check_fallback(names: tuple[str, ...] = ("lm", "resnet50_v2")) -> None:
    for name in names:
        model = SMALL[name]()
        values = random_values(model)
        plain = bind(model.symbol, values, model.grad_req())
        for options in ({"max_overhead": None}, {}, {"policy": "echo", "max_overhead": None}):
            optimized = echo.optimize(model.symbol, **options)
            executor = bind(optimized, values, model.grad_req())
            (plan,) = optimized.plans
            assert plan.applied in ("mirror", "none")
            assert any("native hook cannot be used" in note for note in plan.remarks)
            assert planned_megabytes(executor) <= planned_megabytes(plain)
            assert_same(train(executor, steps=2), train(bind(model.symbol, values, model.grad_req()), steps=2))


def test_missing_libraries(libraries: Path) -> None:
    assert "is not installed" in install_hook()
    assert "g++" in install_hook()
    with pytest.raises(NativeError, match=r"libecho_planner.so is not installed"):
        native.planner_library()
    with pytest.raises(NativeError, match=r"libecho_hook.so is not installed"), native.capture():
        pass
    assert not native.installed()
    check_fallback()


@pytest.mark.slow
def test_fallback_saves_memory(libraries: Path) -> None:
    # MXNet says megabytes, so the full size; nothing is run
    model = MODELS["nmt"]()
    plan = echo.plan(model.symbol, max_overhead=None, **model.shapes)
    assert plan.applied == "mirror"
    assert plan.after.planned < 0.9 * plan.before.planned


def test_plans_without_the_hook_are_warned_of_once(libraries: Path, caplog: pytest.LogCaptureFixture) -> None:
    ONCE.forget()
    for width in (24, 32):
        echo.plan(network(), data=(16, width), label=(16,), max_overhead=None)
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert [text for text in warnings if "without the native hook, plans save less" in text] == warnings[:1]
    assert "libecho_hook.so is not installed" in warnings[0]
    with pytest.raises(UnsupportedError, match=r"libecho_hook.so is not installed"):
        echo.plan(network(), strict=True, **SHAPES)
    with pytest.raises(UnsupportedError, match=r"libecho_hook.so is not installed"):
        echo.optimize(network(), strict=True).simple_bind(mx.cpu(), **SHAPES)


def test_fallback_with_wishes(libraries: Path) -> None:
    optimized = echo.optimize(network(), recompute="tanh*", keep="gate*")
    assert_same(trained(optimized, SHAPES, label=10), trained(network(), SHAPES, label=10))
    assert {decision.name for decision in optimized.plans[-1].recomputed} >= {"tanh0", "tanh1", "tanh2"}
    with pytest.raises(OptionError, match="needs the native hook"):
        echo.plan(mx.sym.Dropout(mx.sym.var("data"), name="drop") * 2, data=(4, 4), grad_req="write", recompute="drop")


def test_fallback_with_a_budget(libraries: Path) -> None:
    model = SMALL["resnet50_v2"]()
    with pytest.raises(BudgetError) as caught:
        echo.plan(model.symbol, memory_budget=1000, **model.shapes)
    plan = echo.plan(model.symbol, memory_budget=caught.value.reachable, **model.shapes)
    assert plan.after.total <= caught.value.reachable


@pytest.mark.slow
def test_missing_planner_alone(libraries: Path) -> None:
    shutil.copy(built("libecho_hook.so"), libraries)
    assert install_hook() == ""
    model = SMALL["lm"]()
    values = random_values(model)
    optimized = echo.optimize(model.symbol, max_overhead=None, fuse=False)
    executor = bind(optimized, values, model.grad_req())
    (plan,) = optimized.plans
    assert plan.applied == "hook"
    assert plan.after.planned < plan.before.planned
    assert_same(train(executor, steps=1), train(bind(model.symbol, values, model.grad_req()), steps=1))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda library: b"",
    "text": lambda library: b"not a library\n",
    "header alone": lambda library: library[:64],
    "another machine": lambda library: library[:18] + b"\xb7\x00" + library[20:],
}


@pytest.mark.every(4)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_libraries(libraries: Path, damage: str) -> None:
    for name in ("libecho_hook.so", "libecho_planner.so"):
        content = built(name).read_bytes()
        (libraries / name).write_bytes(DAMAGE[damage](content))
    reason = install_hook()
    assert "libecho_hook.so" in reason
    assert "reinstall mxnet-echo" in reason
    with pytest.raises(NativeError, match=r"libecho_planner.so.*reinstall mxnet-echo"):
        native.planner_library()
    check_fallback(("lm",))


def test_another_library_in_the_place_of_the_hook(libraries: Path) -> None:
    shutil.copy(built("libecho_planner.so"), libraries / "libecho_hook.so")
    shutil.copy(built("libecho_hook.so"), libraries / "libecho_planner.so")
    assert "has no function" in install_hook()
    with pytest.raises(NativeError, match="has no function"):
        native.planner_library()
    check_fallback(("lm",))


@pytest.mark.every(4)
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.8])
def test_truncated_libraries(tmp_path: Path, share: float) -> None:
    """In a process of its own, since half a library may crash the loader."""
    for name in ("libecho_hook.so", "libecho_planner.so"):
        content = built(name).read_bytes()
        (tmp_path / name).write_bytes(content[: int(share * len(content))])
    code = f"""
        import mxnet as mx
        import echo.native
        echo.native.__path__ = [{str(tmp_path)!r}]
        from echo.frontend.install import install_hook
        print(install_hook())
        x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64)
        for _ in range(5):
            x = mx.sym.tanh(x) * mx.sym.sigmoid(x)
        print(echo.plan(mx.sym.MakeLoss(mx.sym.sum(x)), data=(8, 64), max_overhead=None).applied)
    """
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-500:]
    reason, applied = result.stdout.splitlines()
    assert "reinstall mxnet-echo" in reason
    assert applied in ("mirror", "none")


def test_the_hook_comes_back(libraries: Path) -> None:
    assert install_hook() != ""
    native.__path__[:] = BUILT
    assert install_hook() == ""
    bind_plan.PLANNER.forget()
    assert echo.plan(network(), max_overhead=None, **SHAPES).applied == "hook"
