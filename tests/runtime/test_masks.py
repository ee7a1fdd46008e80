"""Masks as bits: outputs, gradients and random numbers stay those of MXNet to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

import mxnet as mx
import numpy as np
import pytest

import echo
from benchmarks.dropout_models import mlp
from echo.passes.patterns import apply
from echo.passes.patterns.graph_view import Fusion
from echo.planning.planner import Planner
from echo.runtime import bind_plan
from tests.support.fused_models import EXAMPLES, Example, values

NAMES = ("dropout", "rectified")


def same_bits(found: list[Any], expected: list[Any]) -> bool:
    equal = [np.array_equal(mine, theirs, equal_nan=True) for mine, theirs in zip(found, expected)]
    return all(equal) and all((np.signbit(a) == np.signbit(b))[a == 0].all() for a, b in zip(found, expected))


def steps(
    bound: mx.sym.Symbol, example: Example, grad_req: Any, dtype: str = "float32", odd: Sequence[float] = ()
) -> list[Any]:
    """Outputs and gradients of training and inference in turns, and a number drawn afterwards."""
    given = {name: array.astype(dtype) for name, array in values(example).items()}
    if odd:
        given["data"][0, : len(odd)] = mx.nd.array(odd)
    into = {name: mx.nd.full(array.shape, 0.5, dtype=dtype) for name, array in given.items()}
    executor = bound.bind(mx.cpu(), given, into, grad_req)
    random, found = np.random.default_rng(7), []
    mx.random.seed(11)
    for train in (True, False, True):
        executor.forward(is_train=train)
        found += [out.asnumpy() for out in executor.outputs]
        if train:
            executor.backward([mx.nd.array(random.normal(0, 1, out.shape), dtype=dtype) for out in executor.outputs])
            found += [array.asnumpy() for array in executor.grad_arrays]
    return [*found, mx.nd.random.uniform(shape=(3,)).asnumpy()]


def forget_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setattr("echo.planning.plan_cache.load", lambda *_: None)


def bits_of(plan: echo.Plan) -> set[str]:
    return {pattern for pattern, _ in plan.fused}


@pytest.mark.every(6)
@pytest.mark.parametrize("grad_req", ["write", "add", {"data": "add", "dense0_weight": "write"}], ids=str)
@pytest.mark.parametrize("options", [{}, {"max_overhead": None}, {"policy": "none"}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_bit_stays(name: str, options: dict[str, Any], grad_req: Any) -> None:
    example = EXAMPLES[name]()
    if isinstance(grad_req, dict):
        grad_req = {argument: grad_req.get(argument, "null") for argument in example.symbol.list_arguments()}
    fused = echo.optimize(example.symbol, **options)
    found = steps(fused, example, grad_req)
    assert bits_of(fused.plans[-1]) == set(example.found)
    assert same_bits(found, steps(example.symbol, example, grad_req))


@pytest.mark.parametrize(("name", "first"), [("dropout", np.nan), ("rectified", 1e-45)])
def test_odd_numbers_stay(name: str, first: float) -> None:
    """A dropped infinity becomes a NaN, as in MXNet. (A NaN becomes a zero in one ReLU of MXNet's, but not in ours.)"""
    example, odd = EXAMPLES[name](), [first, -0.0, 1e-42, -1e-42]
    odd += [np.inf, -np.inf] if name == "dropout" else []
    fused = echo.optimize(example.symbol)
    assert same_bits(steps(fused, example, "write", odd=odd), steps(example.symbol, example, "write", odd=odd))


def with_begin_state() -> Example:
    state = mx.sym.zeros((0, 64), name="start")
    weights = [mx.sym.var(name) for name in ("wx", "bx", "wh", "bh")]
    for step in mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=6, squeeze_axis=True):
        dropped = mx.sym.Dropout(state, p=0.2)
        products = mx.sym.FullyConnected(step, *weights[:2], num_hidden=64)
        state = mx.sym.tanh(products + mx.sym.FullyConnected(dropped, *weights[2:], num_hidden=64) + state)
    for _ in range(4):
        state = mx.sym.Dropout(mx.sym.tanh(mx.sym.FullyConnected(state, num_hidden=512)), p=0.3)
    return Example(state, {"data": (150, 6, 64)}, {"dropout": 9}, {})


def test_begin_states_stay_as_they_are() -> None:
    """MXNet learns their batch from what is done with them, too late for an operator of ours."""
    example = with_begin_state()
    fused = echo.optimize(example.symbol)
    found = steps(fused, example, "write")
    assert len(fused.plans[-1].fused) == 9
    assert [missed.reason for missed in fused.plans[-1].missed if missed.pattern == "dropout"] == [
        "the shape of 'start' is known too late"
    ]
    assert same_bits(found, steps(example.symbol, example, "write"))


def test_half_precision() -> None:
    x = mx.sym.var("data")
    for _ in range(3):
        x = mx.sym.Dropout(mx.sym.sin(x), p=0.3)
    example = Example(x, {"data": (200, 300)}, {"dropout": 3}, {})
    fused = echo.optimize(example.symbol)
    found = steps(fused, example, "write", dtype="float16")
    assert bits_of(fused.plans[-1]) == {"dropout"}
    assert same_bits(found, steps(example.symbol, example, "write", dtype="float16"))


def test_float64_dropout_stays_as_it_is() -> None:
    example = EXAMPLES["dropout"]()
    fused = echo.optimize(example.symbol)
    found = steps(fused, example, "write", dtype="float64")
    assert not fused.plans[-1].fused
    assert {missed.reason for missed in fused.plans[-1].missed if missed.pattern == "dropout"} == {
        "expected arrays of one type, float32 or float16, got float64"
    }
    assert same_bits(found, steps(example.symbol, example, "write", dtype="float64"))


def test_another_mask_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above, with a few elements more that are dropped."""
    real = apply.PATTERNS["dropout"].match

    def other(view: Any, number: int) -> Any:
        found = real(view, number)
        if not isinstance(found, Fusion):
            return found
        nodes = (node.with_attrs({"keep": "0.69"}) if "keep" in node.attrs else node for node in found.nodes)
        return Fusion(**{**vars(found), "nodes": tuple(nodes)})

    monkeypatch.setattr(apply, "PATTERNS", {"dropout": replace(apply.PATTERNS["dropout"], match=other)})
    forget_plans(monkeypatch)
    example = EXAMPLES["dropout"]()
    fused = echo.optimize(example.symbol)
    assert not same_bits(steps(fused, example, "write"), steps(example.symbol, example, "write"))


def test_reshaped_executors_draw_on() -> None:
    example = EXAMPLES["dropout"]()
    results = []
    for symbol in (echo.optimize(example.symbol), example.symbol):
        executor = symbol.simple_bind(mx.cpu(), **example.shapes)
        mx.random.seed(4)
        found = []
        for rows in (150, 60, 150):
            executor = executor.reshape(allow_up_sizing=True, data=(rows, 64))
            for array in executor.arg_arrays:
                array[:] = 0.25
            executor.forward(is_train=True)
            executor.backward([mx.nd.ones(out.shape) for out in executor.outputs])
            found += [array.asnumpy() for array in (*executor.outputs, *executor.grad_arrays)]
        results.append(found)
    assert same_bits(*results)


def test_module_with_mask_bits_trains_to_stocks_bits() -> None:
    """Three updates of `benchmarks.dropout_models.mlp`, with Adam: the weights, and predictions."""
    model = mlp(batch=64, width=256)
    random = np.random.default_rng(2)
    data = {"data": random.normal(size=(192, 784)), "softmax_label": random.integers(0, 10, 192)}
    results = []
    for symbol in (echo.optimize(model.symbol), model.symbol):
        mx.random.seed(5)
        np.random.seed(5)
        batches = mx.io.NDArrayIter(data["data"], data["softmax_label"], 64)
        module = mx.mod.Module(symbol)
        module.fit(batches, num_epoch=1, optimizer="adam", initializer=mx.init.Xavier())
        weights, _ = module.get_params()
        results.append([*(weights[name].asnumpy() for name in sorted(weights)), module.predict(batches).asnumpy()])
        if symbol is not model.symbol:
            assert bits_of(symbol.plans[-1]) == {"dropout"}
    assert same_bits(*results)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_block_with_mask_bits_trains_to_stocks_bits(static: bool, grad_req: str) -> None:
    results = []
    for fuse in (False, True):
        mx.random.seed(3)
        net = mx.gluon.nn.HybridSequential()
        for _ in range(6):
            net.add(mx.gluon.nn.Dense(64, activation="tanh", in_units=64), mx.gluon.nn.Dropout(0.3))
        net.initialize(mx.init.Uniform(0.3))
        net.collect_params().setattr("grad_req", grad_req)
        if fuse:
            net = echo.optimize(net)
        net.hybridize(static_alloc=static)
        data = mx.nd.random.normal(shape=(150, 64))
        data.attach_grad(grad_req)
        for _ in range(2):
            with mx.autograd.record():
                loss = (net(data) ** 2).sum()
            loss.backward()
        with mx.autograd.record(train_mode=False):
            kept = (net(data) ** 2).sum()
        kept.backward(train_mode=False)
        gradients = [parameter.grad().asnumpy() for parameter in net.collect_params().values()]
        results.append([loss.asnumpy(), kept.asnumpy(), data.grad.asnumpy(), *gradients, net(data).asnumpy()])
    assert same_bits(*results)
    assert any(bits_of(plan) == {"dropout"} for plan in net._cached_op.plans.values())
