"""Gradients that read less leave every operator in its place: sums over blocked arrays keep their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import echo
from echo.errors import PlanError
from echo.estimators.inplace import as_stock, displacing, over_first_input
from echo.frontend.capture import training_graph
from echo.frontend.derived_graphs import apply_gradient_rules
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, infer_binding
from echo.ir.gradient_rules import gradient_rules
from echo.ir.op_spec import GRADIENT_ATTRIBUTE
from echo.ir.training_graph import TrainingGraph
from tests.support.training import assert_same, bind, random_arrays, train

S = mx.sym
Sum = Callable[[Any, Any], Any]
pytestmark = pytest.mark.usefixtures("cheap_planning")


def _numpy(combine: Sum) -> Sum:
    return lambda left, right: combine(left.as_np_ndarray(), right.as_np_ndarray()).as_nd_ndarray()


SUMS: dict[str, Sum] = {
    "add": lambda left, right: left + right,
    "broadcast_add": S.broadcast_add,
    "np.add": _numpy(lambda left, right: left + right),
    "np.subtract": _numpy(lambda left, right: left - right),
    "relu of np.add": _numpy(lambda left, right: S.npx.relu(left + right)),
    "np.add of a row": _numpy(lambda left, right: left + S.np.mean(right, axis=0, keepdims=True)),
}
FLAGS: dict[str, dict[str, bool]] = {
    "dynamic": {}, "static": {"static_alloc": True}, "static shape": {"static_alloc": True, "static_shape": True},
}  # fmt: skip


def residual(combine: Sum, channels: int) -> mx.sym.Symbol:
    """Blocks whose gradients are sums over what oneDNN's pooling hands back in a blocked layout, and a last norm."""

    def normed(value: Any, name: str) -> Any:
        value = S.Convolution(value, kernel=(3, 3), pad=(1, 1), num_filter=channels, name=f"{name}_conv")
        return S.BatchNorm(value, fix_gamma=False, name=f"{name}_norm")

    hidden = normed(S.var("data", dtype="float32"), "stem")
    for layer in range(2):
        hidden = combine(hidden, normed(hidden, f"block{layer}"))
    hidden = S.BatchNorm(hidden, fix_gamma=False, name="last_norm")
    hidden = S.Pooling(hidden, kernel=(2, 2), global_pool=True, pool_type="avg")
    return S.FullyConnected(hidden, num_hidden=5, name="last")


def shape_of(channels: int) -> tuple[int, ...]:
    return (4, channels, 12, 12)


def trained_block(
    symbol: mx.sym.Symbol, values: dict[str, Any], flags: dict[str, bool], on: bool, frozen: str = ""
) -> dict[str, Any]:
    """Outputs, gradients and auxiliary states of two steps, and what inference gives after each.

    Parameters whose names begin with ``frozen`` get no gradients.
    """
    net = gluon.SymbolBlock(symbol, [S.var("data", dtype="float32")])
    for name, parameter in net.collect_params().items():
        parameter.shape = values[name].shape
        parameter.initialize()
        parameter.set_data(values[name])
        if frozen and name.startswith(frozen):
            parameter.grad_req = "null"
    net.hybridize(**flags)
    net = echo.optimize(net, exact=True) if on else net
    seen = {}
    for step in range(2):
        with autograd.record():
            output = net(values["data"] * (step + 1))
        output.backward(mx.nd.arange(output.size).reshape(output.shape))
        seen[f"output {step}"] = output.asnumpy()
        seen[f"inference {step}"] = net(values["data"]).asnumpy()
        for name, parameter in net.collect_params().items():
            seen[f"{name} {step}"] = (parameter.data() if parameter.grad_req == "null" else parameter.grad()).asnumpy()
    return seen


def _values(symbol: mx.sym.Symbol, channels: int) -> dict[str, Any]:
    shapes, _, states = symbol.infer_shape(data=shape_of(channels))
    random = np.random.RandomState(0)
    arguments = {name: random.normal(0, 0.3, shape) for name, shape in zip(symbol.list_arguments(), shapes)}
    moving = {name: np.ones(shape) for name, shape in zip(symbol.list_auxiliary_states(), states)}
    return {name: mx.nd.array(value) for name, value in {**arguments, **moving}.items()}


def assert_same_blocks(symbol: mx.sym.Symbol, channels: int, frozen: str = "") -> None:
    """Every bit is the same with echo and without, whatever memory the block keeps."""
    values = _values(symbol, channels)
    for flags in FLAGS.values():
        expected, got = (trained_block(symbol, values, flags, on, frozen) for on in (False, True))
        assert_same(got, expected)


@pytest.mark.every(5)
@pytest.mark.parametrize("channels", [3, 8, 16])
@pytest.mark.parametrize("combine", SUMS)
def test_a_block_with_shortcuts_keeps_every_bit(combine: str, channels: int) -> None:
    assert_same_blocks(residual(SUMS[combine], channels), channels)


@pytest.mark.every(5)
@pytest.mark.parametrize("frozen", ["stem", "block0", "stem_norm"])
@pytest.mark.parametrize("combine", SUMS)
def test_a_block_with_frozen_layers_keeps_every_bit(combine: str, frozen: str) -> None:
    """MXNet leaves out gradients that nothing needs, which changes what works in place."""
    assert_same_blocks(residual(SUMS[combine], 8), 8, frozen)


@pytest.mark.every(5)
@pytest.mark.parametrize("channels", [3, 8, 16])
@pytest.mark.parametrize("combine", SUMS)
def test_an_executor_with_shortcuts_keeps_every_bit(combine: str, channels: int) -> None:
    symbol = residual(SUMS[combine], channels)
    values = random_arrays(symbol, {"data": shape_of(channels)})
    for request in ("write", "add"):
        expected = train(bind(symbol, values, request))
        assert_same(train(bind(echo.optimize(symbol, exact=True), values, request)), expected)


def branches(combine: Sum, first: bool) -> mx.sym.Symbol:
    """Two terms that read one gradient, of which one is a convolution of the data; BatchNorms read plain arrays."""

    def convolved(value: Any, name: str, kernel: int = 3) -> Any:
        return S.Convolution(value, kernel=(kernel, kernel), pad=(kernel // 2, kernel // 2), num_filter=16, name=name)

    def normed(value: Any, name: str) -> Any:
        return S.BatchNorm(value, fix_gamma=False, name=name)

    data = S.var("data", dtype="float32")
    side = convolved(data, "side_conv") if first else None
    terms = (normed(S.sin(convolved(data, f"{name}_conv", 1)), f"{name}_norm") for name in ("left", "right"))
    total = combine(*terms)
    total = total + convolved(data, "side_conv") if side is None else side + total
    hidden = normed(convolved(total, "next_conv"), "next_norm")
    return S.FullyConnected(S.tanh(hidden), num_hidden=5, name="last")


@pytest.mark.every(5)
@pytest.mark.parametrize("frozen", ["", "side", "left", "right"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("combine", SUMS)
def test_terms_of_a_sum_keep_every_bit(combine: str, first: bool, frozen: str) -> None:
    """Without a gradient of the data, MXNet computes gradients in another order. Statistics of frozen layers stay."""
    assert_same_blocks(branches(SUMS[combine], first), 16, frozen)


# The rules that are chosen


def captured(combine: str) -> TrainingGraph:
    assert install_hook() == ""
    symbol = residual(SUMS[combine], 16)
    return training_graph(graph_of(symbol), infer_binding(symbol, {"data": shape_of(16)}), mx.cpu())


def test_a_gradient_that_reads_one_array_twice_loses_its_place() -> None:
    original = captured("relu of np.add")
    training, in_place = as_stock(original, "cpu"), over_first_input(original, "cpu")
    assert in_place
    careless = gradient_rules(training, onednn=True)
    careful = gradient_rules(training, onednn=True, in_place=in_place)
    assert careless.keys() == careful.keys()
    assert displacing(training, apply_gradient_rules(training, careless), "cpu") == careless.keys()
    assert displacing(training, apply_gradient_rules(training, careful), "cpu") == frozenset()
    assert displacing(training, apply_gradient_rules(training, careless), "gpu") == frozenset()


def test_such_a_gradient_reads_a_term_that_another_one_needs() -> None:
    training = captured("relu of np.add")
    rules = gradient_rules(training, onednn=True, in_place=over_first_input(training, "cpu"))
    assert {rule.text.partition(":")[2] for rule in rules.values()} == {"0,1,1"}


def test_a_plan_with_a_gradient_that_loses_its_place_is_refused() -> None:
    symbol = residual(SUMS["relu of np.add"], 16)
    plan = echo.plan(symbol, exact=True, heavy="never", grad_req="write", data=shape_of(16))
    marks = tuple(
        replace(mark, attrs={**mark.attrs, GRADIENT_ATTRIBUTE: text.replace("0,1,1", "0,0,0")})
        if (text := mark.attrs.get(GRADIENT_ATTRIBUTE)) else mark for mark in plan.marks
    )  # fmt: skip
    assert marks != plan.marks
    with pytest.raises(PlanError, match=r"the plan has the gradient of .* computed by"):
        echo.optimize(symbol, plan=replace(plan, marks=marks)).simple_bind(mx.cpu(), data=shape_of(16))
