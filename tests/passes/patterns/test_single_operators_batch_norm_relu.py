"""BatchNorms with a ReLU: which are found, and why others are not."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Setting
from echo.ir.training_node import FLAGS, TensorType
from echo.passes.patterns.apply import find, fusion_blocker
from echo.passes.patterns.single_operators import BATCH_NORM_RELU
from tests.passes.patterns.near_misses import Miss, Symbol, assert_missed, assert_nothing, found_in, same, var

ORDER = "operators that are not oneDNN's compute or read the input of 'norm'"
Use = Callable[[Symbol, Symbol, Symbol], Symbol]  # of the ReLU, the norm, and its input


def convolution(x: Symbol, name: str) -> Symbol:
    return mx.sym.Convolution(x, kernel=(1, 1), num_filter=3, name=name)


def rectified(
    act: str = "relu", use: Use = lambda y, *_: y, read: Callable[[Symbol], Symbol] = same, **attrs: Any
) -> Symbol:
    x = read(convolution(var("data"), "conv"))
    norm = mx.sym.BatchNorm(x, name="norm", **attrs)
    y = mx.sym.Activation(norm[0], act_type=act, name="act")
    return convolution(use(y, norm, x), "last")


def with_head(name: str) -> Symbol:
    symbol = rectified()
    return mx.sym.Group([symbol, symbol.get_internals()[name]])


MISSES: dict[str, Miss] = {
    "the operator relu": (
        lambda: convolution(mx.sym.relu(mx.sym.BatchNorm(convolution(var("x"), "conv")), name="act"), "last"),
        "the operator relu keeps NaNs: expected Activation",
    ),
    "another axis": (lambda: rectified(axis=3), "a BatchNorm over axis 3: expected axis 1"),
    "a plain input": (lambda: rectified(read=mx.sym.exp), ORDER),
    "a sum with a plain array": (lambda: rectified(read=lambda x: x + mx.sym.exp(x)), ORDER),
    "an input that is seen in another shape": (
        lambda: rectified(use=lambda y, norm, x: mx.sym.broadcast_add(y, mx.sym.reshape_like(mx.sym.Flatten(x), y))),
        ORDER,
    ),
    "an input that the user reads": (lambda: with_head("conv_output"), ORDER),
    "a norm that is added to its ReLU": (
        lambda: rectified(use=lambda y, norm, x: y + norm), "'norm' is read by others than the ReLU"
    ),
    "a norm that the user reads": (
        lambda: with_head("norm_output"), "'norm' is read by others than the ReLU"
    ),
    "a norm whose mean is read": (
        lambda: rectified(output_mean_var=True, use=lambda y, norm, x: mx.sym.broadcast_add(y, norm[1])),
        "'norm' is read by others than the ReLU",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


FOUND: dict[str, Callable[[], Symbol]] = {
    "after a convolution": rectified,
    "with gamma": lambda: rectified(fix_gamma=False),
    "with moving statistics": lambda: rectified(use_global_stats=True),
    "with attributes": lambda: rectified(eps=1e-5, axis=1),
    "after pooling": lambda: rectified(read=lambda x: mx.sym.Pooling(x, kernel=(2, 2))),
    "after a shortcut": lambda: rectified(read=lambda x: x + convolution(x, "other")),
    "next to a shortcut": lambda: rectified(use=lambda y, norm, x: y + x),
}


@pytest.mark.parametrize("name", FOUND)
def test_batch_norm_with_its_relu_is_found(name: str) -> None:
    assert found_in(FOUND[name])[0] == [BATCH_NORM_RELU.name]


def test_other_activations_are_no_relu() -> None:
    assert_nothing(lambda: rectified("sigmoid"))


def test_nothing_is_found_without_onednn() -> None:
    found, missed = find(graph_of(rectified()), setting=Setting())
    assert BATCH_NORM_RELU.name not in {each.pattern for each in (*found, *missed)}


@pytest.mark.parametrize(("shape", "dtype", "reason"), [
    ((2, 3, 32, 32), "float32", ""),
    ((2, 3, 1024), "float32", "expected shape (N,C,Y,X), got (2, 3, 1024)"),
    ((2, 3, 4, 4, 64), "float32", "expected shape (N,C,Y,X), got (2, 3, 4, 4, 64)"),
    ((2, 3, 32, 32), "float64", "expected arrays of one type, float32, got float64"),
    ((2, 3, 1, 1), "float32", ""),
])  # fmt: skip
def test_shape_and_type_decide(shape: tuple[int, ...], dtype: str, reason: str) -> None:
    (fusion,), _ = find(graph_of(rectified()), setting=Setting(onednn_norm=True))
    x, gamma = fusion.shapes
    types = {x: TensorType(shape, FLAGS[dtype]), gamma: TensorType(shape[1:2], FLAGS[dtype])}
    assert fusion_blocker(fusion, types) == reason
