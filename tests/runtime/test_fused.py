"""Fused operators in training: MXNet's results up to rounding, whoever binds, and however gradients are asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import Any, Sequence

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.passes import variant
from tests.support.fused_models import (
    EXAMPLES,
    STEPS,
    Example,
    attention,
    ordered_gru,
    ordered_lstm,
    trained_gluon,
    values,
)
from tests.support.reset_gru_models import MIXES, Gates, apart, halves, one_way, other_halves, parts
from tests.support.training import TOLERANCE

pytestmark = pytest.mark.usefixtures("cheap_planning")


def gradients(
    bound: mx.sym.Symbol, example: Example, grad_req: str = "write", dtype: str = "float32", rounds: int = 2
) -> list[Any]:
    """Outputs and gradients after some steps."""
    given = {name: array.astype(dtype) for name, array in values(example).items()}
    into = {name: mx.nd.full(array.shape, 0.5, dtype=dtype) for name, array in given.items()}
    requests = {name: "null" if name in example.integers else grad_req for name in given}
    executor = bound.bind(mx.cpu(), given, into, requests)
    random = np.random.default_rng(7)
    mx.random.seed(11)
    for _ in range(rounds):
        executor.forward(is_train=True)
        heads = [mx.nd.array(random.normal(0, 1, out.shape), dtype=dtype) for out in executor.outputs]
        executor.backward(heads)
    arrays = [*executor.outputs, *executor.grad_arrays]
    return [array.asnumpy().astype(np.float64) for array in arrays]


def distance(found: Sequence[Any], exact: Sequence[Any]) -> float:
    """The largest difference, in parts of the largest element of each array; infinite where not the same are NaN."""
    if any(not np.array_equal(np.isnan(a), np.isnan(b)) for a, b in zip(found, exact)):
        return np.inf
    pairs = [(np.nan_to_num(a), np.nan_to_num(b)) for a, b in zip(found, exact)]
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs)


@pytest.fixture
def always_fused(monkeypatch: pytest.MonkeyPatch, cheap_planning: None) -> None:
    """Graphs with fused operators are taken whatever they need: some gain only where models are larger than these."""
    monkeypatch.setattr(variant.Variant, "is_larger", False)
    monkeypatch.setattr(variant, "RULES", replace(variant.RULES, more=1e9, slack=1e9, step=1e9))


@pytest.mark.every(21)
@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_results_are_those_of_mxnet(name: str, grad_req: str, always_fused: None) -> None:
    example = EXAMPLES[name]()
    fused = echo.optimize(example.symbol, max_overhead=None, fuse=example.fuse)
    found = gradients(fused, example, grad_req)
    plan = fused.plans[-1]
    assert Counter(pattern for pattern, _ in plan.fused) == example.found, plan.notes
    stock = gradients(example.symbol, example, grad_req)
    assert distance(found, stock) < TOLERANCE


@pytest.mark.every(10)
@pytest.mark.parametrize("name", EXAMPLES)
def test_fused_graphs_need_no_more_than_mxnets(name: str) -> None:
    example = EXAMPLES[name]()
    arguments = example.symbol.list_arguments()
    requests = {argument: "null" if argument in example.integers else "write" for argument in arguments}
    plan = echo.plan(example.symbol, max_overhead=None, fuse=example.fuse, grad_req=requests, **example.shapes)
    assert plan.after.total - plan.after.workspaces <= plan.before.total


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["lstm cells", "attention", "attention with layer norm", "softmax output, padded"])
def test_results_are_as_close_to_the_truth_as_those_of_mxnet(name: str) -> None:
    example = EXAMPLES[name]()
    exact = gradients(example.symbol, example, dtype="float64")
    stock = gradients(example.symbol, example)
    found = gradients(echo.optimize(example.symbol), example)
    for mine, theirs, truth in zip(found, stock, exact):
        assert distance([mine], [truth]) < 2 * distance([theirs], [truth]) + 1e-6


@pytest.mark.every(12)
@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("places", list(permutations(range(4))))
def test_lstm_with_gates_in_any_order_is_fused(places: Sequence[int], grad_req: str, always_fused: None) -> None:
    for example in (ordered_lstm(places), ordered_lstm(places, fed=True)):
        fused = echo.optimize(example.symbol, max_overhead=None)
        found = gradients(fused, example, grad_req)
        assert Counter(pattern for pattern, _ in fused.plans[-1].fused) == example.found
        assert distance(found, gradients(example.symbol, example, grad_req, dtype="float64")) < TOLERANCE


@pytest.mark.every(3)
@pytest.mark.parametrize("places", list(permutations(range(3))))
def test_gru_with_gates_in_any_order_is_fused(places: Sequence[int], always_fused: None) -> None:
    example = ordered_gru(places)
    fused = echo.optimize(example.symbol, max_overhead=None)
    found = gradients(fused, example)
    assert Counter(pattern for pattern, _ in fused.plans[-1].fused) == example.found
    assert distance(found, gradients(example.symbol, example, dtype="float64")) < TOLERANCE


@pytest.mark.every(5)
@pytest.mark.parametrize("gates", [halves, other_halves, apart, parts])
@pytest.mark.parametrize("mix", MIXES)
def test_gru_with_its_reset_gate_in_front_is_fused(mix: str, gates: Gates, always_fused: None) -> None:
    example = one_way(zeros=True, mix=mix, gates=gates)
    fused = echo.optimize(example.symbol, max_overhead=None)
    found = gradients(fused, example)
    assert Counter(pattern for pattern, _ in fused.plans[-1].fused) == example.found
    assert distance(found, gradients(example.symbol, example)) < TOLERANCE


def test_half_precision() -> None:
    example = EXAMPLES["attention by hand"]()  # MXNet has no products in float16 on the CPU
    fused = echo.optimize(example.symbol)
    found = gradients(fused, example, dtype="float16")
    assert fused.plans[-1].fused
    assert distance(found, gradients(example.symbol, example)) < 2e-2  # float16 has 1e-3 an operation


@pytest.mark.parametrize("name", ["lstm layer", "attention", "softmax output"])
def test_training_without_fusion_keeps_every_bit(name: str) -> None:
    example = EXAMPLES[name]()
    plain = echo.optimize(example.symbol, fuse=False)
    found, stock = gradients(plain, example), gradients(example.symbol, example)
    assert not plain.plans[-1].fused
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(found, stock))


def test_gradients_of_many_readers_need_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    # MXNet adds the ninth gradient of the keys to the eighth in place: an extension operator would overwrite it
    example = attention(norm=False, steps=2 * STEPS)
    stock = gradients(example.symbol, example)
    assert distance(gradients(echo.optimize(example.symbol, policy="none"), example), stock) < TOLERANCE
    monkeypatch.setattr("echo.passes.patterns.substitute.COPY_ATTRIBUTE", "__no_copies__")
    without = gradients(echo.optimize(example.symbol, policy="none", max_overhead=0.3), example)
    assert distance(without, stock) > 0.01


@pytest.mark.parametrize("name", ["lstm layers", "attention"])
def test_the_user_sees_his_own_graph(name: str) -> None:
    example = EXAMPLES[name]()
    optimized = echo.optimize(example.symbol)
    executor = optimized.simple_bind(mx.cpu(), **example.shapes)
    assert optimized.list_arguments() == example.symbol.list_arguments()
    assert list(executor.arg_dict) == example.symbol.list_arguments()
    assert "_echo_" not in optimized.tojson()
    assert "_echo_" not in executor.get_optimized_symbol().tojson()
    for array in executor.arg_arrays:
        array[:] = 0.1
    seen: list[str] = []
    executor.set_monitor_callback(lambda value, _: seen.append(value if isinstance(value, str) else value.decode()))
    executor.forward(is_train=True)
    mx.nd.waitall()
    stock: list[str] = []
    own = example.symbol.simple_bind(mx.cpu(), **example.shapes)
    own.set_monitor_callback(lambda value, _: stock.append(value if isinstance(value, str) else value.decode()))
    own.forward(is_train=True)
    mx.nd.waitall()
    assert seen == stock


@pytest.mark.slow
def test_inference_and_reshape() -> None:
    example = EXAMPLES["attention"]()
    optimized = echo.optimize(example.symbol)
    given = values(example)
    pair = [symbol.simple_bind(mx.cpu(), **example.shapes) for symbol in (optimized, example.symbol)]
    for batch in (3, 2, 5):
        shapes = {name: (batch, *shape[1:]) for name, shape in example.shapes.items()}
        pair = [executor.reshape(allow_up_sizing=True, **shapes) for executor in pair]
        for executor in pair:
            for name, array in executor.arg_dict.items():
                array[:] = given[name] if array.shape == given[name].shape else 0.25
            executor.forward(is_train=False)
            executor.forward(is_train=True)
            executor.backward([mx.nd.ones(out.shape) for out in executor.outputs])
        found, stock = ([array.asnumpy() for array in (*e.outputs, *e.grad_arrays)] for e in pair)
        assert distance(found, stock) < TOLERANCE


def test_a_plan_with_fused_operators_is_saved_and_applied(tmp_path: Any) -> None:
    example = EXAMPLES["attention with layer norm"]()
    plan = echo.plan(example.symbol, grad_req="write", **example.shapes)
    plan.save(tmp_path / "plan.json")
    loaded = echo.load_plan(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.fused
    again = echo.optimize(example.symbol, plan=loaded)
    found = gradients(again, example)
    assert distance(found, gradients(example.symbol, example)) < TOLERANCE
    assert again.plans[-1].fused == plan.fused


def test_a_plan_names_places_that_are_none(tmp_path: Any) -> None:
    example = EXAMPLES["attention"]()
    plan = echo.plan(example.symbol, grad_req="write", **example.shapes)
    text = plan.to_json()
    text["fused"] = [["lstm_cell", 3]]
    wrong = type(plan).from_json(text)
    with pytest.raises(echo.EchoError, match=r"node 3 .* is no lstm_cell"):
        echo.optimize(example.symbol, plan=wrong).simple_bind(mx.cpu(), **example.shapes)


@pytest.mark.usefixtures("free_workspaces")
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_fused_block_trains_within_tolerance(static: bool, grad_req: str) -> None:
    def layers() -> mx.gluon.HybridBlock:
        return mx.gluon.rnn.LSTM(8, 2, layout="NTC", input_size=5)

    stock, _ = trained_gluon(layers, static, grad_req)
    found, plans = trained_gluon(layers, static, grad_req, echo.optimize)
    assert distance(found, stock) < TOLERANCE
    assert any(plan.fused for plan in plans)


@pytest.mark.parametrize("steps", [128, 256])
def test_dropped_attention_holds_a_bit_for_each_weight(steps: int) -> None:
    """At the peak, result and head gradient, one number a query, and the bits with their gradient, which is zeros."""
    q, k, v = (mx.sym.var(name, shape=(8, steps, 16)) for name in "qkv")
    weights = mx.sym.Dropout(mx.sym.softmax(mx.sym.batch_dot(q, k, transpose_b=True) / 4), p=0.1)
    plan = echo.plan(mx.sym.batch_dot(weights, v), grad_req="write")
    result, bits = 4 * 8 * steps * 16, 8 * steps * steps // 8
    assert plan.after.live_peak <= 2 * result + 2 * bits + 4 * 8 * steps + 64
    assert plan.before.live_peak >= 3 * 32 * bits  # softmax, mask and the gradient of one of them
