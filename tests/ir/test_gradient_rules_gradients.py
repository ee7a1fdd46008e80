"""Gradients that are handed less than by MXNet: the same bits, in executors and CachedOps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from echo.frontend.capture import training_graph
from echo.frontend.install import onednn_activations
from echo.ir.gradient_rules import gradient_rules, known
from echo.ir.op_spec import GRADIENT_ATTRIBUTE
from echo.ir.training_graph import TrainingGraph
from tests.ir.test_ops_cached import DYNAMIC, STATIC
from tests.ir.test_ops_cached import run as run_cached
from tests.support.cases import case_of
from tests.support.gradient_cases import CASES, applicable, apply_gradient_rules, case, run, shaped, under
from tests.support.numpy_builds import inner, of
from tests.support.operator_builds import Build, unary
from tests.support.training import assert_alive, assert_same, bind, random_arrays, recomputing

ROOT = Path(__file__).parents[2]


def read_by_gradient(training: TrainingGraph) -> set[tuple[int, int]]:
    (number,) = (i for i, node in training.operators() if node.name == "under" and node.forward)
    return {
        (entry.node, entry.index)
        for _, node in training.operators()
        if not node.forward and number in node.control_deps
        for entry in node.inputs
    }


# The same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.every(7)
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(name: str) -> None:
    found = case(CASES[name])
    expected = run(found.symbol)
    assert_alive(expected)
    for text in applicable(found):
        changed = training_graph(found.graph, found.binding, mx.cpu(), {under(found): {GRADIENT_ATTRIBUTE: text}})
        if "of one twice" not in name:
            assert read_by_gradient(changed) != read_by_gradient(found.training)
        assert_same(run(apply_gradient_rules(found, text)), expected)
        assert_same(run(apply_gradient_rules(found, text), grad_req="add"), run(found.symbol, grad_req="add"))
        with_clone = recomputing(apply_gradient_rules(found, text), {"under": [0]})
        assert_same(run(with_clone), expected)


@pytest.mark.every(7)
@pytest.mark.parametrize("flags", [DYNAMIC, STATIC], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_in_a_cached_op(name: str, flags: dict[str, Any]) -> None:
    found = case(CASES[name])
    expected, _ = run_cached(found.symbol, flags)
    for text in applicable(found):
        assert_same(run_cached(apply_gradient_rules(found, text), flags)[0], expected)
        assert_same(run_cached(recomputing(apply_gradient_rules(found, text), {"under": [0]}), flags)[0], expected)


ANY_TYPE = ["softsign", "selu", "masked softmax", "concat", "sum", "difference"]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", ANY_TYPE)
def test_the_same_bits_of_other_types(name: str, dtype: str) -> None:
    found = case(CASES[name], dtype)
    chosen = gradient_rules(found.training, onednn=True)[under(found)].text
    assert_same(run(apply_gradient_rules(found, chosen), dtype), run(found.symbol, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["", "AVX512_CORE", "AVX2", "AVX", "SSE41"])
def test_the_same_bits_of_sigmoid_for_every_number(isa: str) -> None:
    """From the output as from the input, for bit patterns of all magnitudes, with each of oneDNN's instruction sets."""
    environment = {**os.environ, "DNNL_MAX_CPU_ISA": isa}
    code = "from tests.ir.test_gradient_rules_gradients import *; print(sigmoid_deviates(1 << 20))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True, text=True, env=environment, cwd=ROOT, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.strip() == "0"


def sigmoid_deviates(count: int) -> int:
    """Of so many gradients of sigmoid, those that differ between the two formulas."""
    generator = np.random.RandomState(0)
    values = np.concatenate([
        generator.normal(0, 2, count // 2),
        generator.randint(0, 2**32, count // 2, dtype=np.uint64).astype(np.uint32).view(np.float32),
    ]).astype(np.float32)  # fmt: skip
    symbol = mx.sym.Activation(mx.sym.var("data"), act_type="sigmoid", name="under")
    found = case_of(symbol, {"data": (count,)}, "write")
    heads = mx.nd.array(generator.normal(0, 1, count))
    seen = []
    for rule in known("Activation", {"act_type": "sigmoid"}):
        executor = bind(apply_gradient_rules(found, rule.text), {"data": values})
        executor.forward(is_train=True)
        executor.backward([heads])
        seen.append(executor.grad_dict["data"].asnumpy())
    assert len(seen) == 2
    return int(((seen[0].view(np.uint32) != seen[1].view(np.uint32)) & ~np.isnan(values)).sum())


@pytest.mark.parametrize("is_train", [True, False])
def test_the_same_bits_in_every_mode(is_train: bool) -> None:
    found = case(CASES["chain of tanh"])
    (text,) = applicable(found)
    seen = []
    for symbol in (found.symbol, apply_gradient_rules(found, text)):
        executor = bind(symbol, random_arrays(symbol, {"data": (8, 72)}))
        executor.forward(is_train=is_train)
        executor.backward([mx.nd.ones(out.shape) for out in executor.outputs], is_train=not is_train)
        seen.append({name: array.asnumpy() for name, array in executor.grad_dict.items()})
    assert_same(seen[1], seen[0])


# Where they are not taken ----------------------------------------------------------------------------------------


def wrongly(name: str, dtype: str = "float32", text: str = "_backward_Activation>_backward_Activation:0,2,2") -> bool:
    """Whether an implementation changes the bits of this case."""
    found = case(CASES[name] if name in CASES else OTHERS[name], dtype)
    expected, got = run(found.symbol, dtype), run(apply_gradient_rules(found, text), dtype)
    return any(got[key].tobytes() != expected[key].tobytes() for key in expected)


OTHERS: dict[str, Build] = {
    "tanh of 6 axes": shaped((2, 2, 2, 2, 6, 6), mx.sym.Activation, act_type="tanh"),
    "relu": unary(mx.sym.Activation, act_type="relu"),
    "plain softmax": unary(mx.sym.softmax),
    "softmax to another type": lambda x, y, name: mx.sym.cast(
        mx.sym.softmax(
            mx.sym.cast(x, dtype="float16"),
            length=mx.sym.cast(1 + mx.sym.arange(8) % 7, dtype="int32"),
            use_length=True,
            dtype="float32",
            name=name,
        ),
        dtype="float32",
    ),
    "mixed sum": of(lambda x, y, name: inner.add(x, inner.greater_scalar(y, scalar=0.0), name=name), "x y"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_unsuitable_operator_has_no_rule_chosen(name: str) -> None:
    assert under(found := case(OTHERS[name])) not in gradient_rules(found.training, onednn=True)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softrelu", "elu", "gelu", "leaky"])
def test_operator_without_onednn_has_no_rule_chosen(name: str) -> None:
    for dtype, onednn in (("float64", True), ("float16", True), ("float32", False)):
        assert gradient_rules(case(CASES[name], dtype).training, onednn=onednn) == {}


def test_rule_for_unsuitable_operator_would_change_gradients() -> None:
    assert wrongly("tanh", "float64")
    assert wrongly("tanh of 6 axes")
    assert not wrongly("tanh")
    assert wrongly("falling leaky", text="_backward_LeakyReLU>_backward_LeakyReLU:0,2,2")


def test_a_falling_leaky_relu_is_read_from_its_input() -> None:
    assert applicable(case(CASES["falling leaky"])) == ["_backward_LeakyReLU>_backward_LeakyReLU:0,1,1"]


@pytest.mark.slow
def test_onednn_is_tried() -> None:
    code = (
        "from echo.frontend.install import install_hook; from echo.frontend.install import onednn_activations;"
        "assert install_hook() == ''; print(onednn_activations())"
    )
    for enabled in ("0", "1"):
        environment = {**os.environ, "MXNET_MKLDNN_ENABLED": enabled}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True, text=True, env=environment, cwd=ROOT, check=True, timeout=120,
        )  # fmt: skip
        assert done.stdout.strip() == str(enabled == "1")
    assert onednn_activations()
