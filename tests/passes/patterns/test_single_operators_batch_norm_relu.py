"""BatchNorms with a ReLU: which are found, and why others are not."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Entry, Setting
from echo.ir.training_node import FLAGS, TensorType
from echo.passes.patterns.apply import find, fusion_blocker
from echo.passes.patterns.single_operators import BATCH_NORM_RELU
from tests.passes.patterns.near_misses import Miss, Symbol, assert_missed, assert_nothing, found_in, var


def rectified(
    act: str = "relu", use: Callable[[Symbol, Symbol], Symbol] = lambda y, norm: mx.sym.sum(y), **attrs: Any
) -> Symbol:
    norm = mx.sym.BatchNorm(var("x"), name="norm", **attrs)
    return use(mx.sym.Activation(norm[0], act_type=act, name="act"), norm)


MISSES: dict[str, Miss] = {
    "another axis": (lambda: rectified(axis=3), "a BatchNorm over axis 3: expected axis 1"),
    "a norm that is added to its ReLU": (
        lambda: rectified(use=lambda y, norm: y + norm), "'norm' is read by others than the ReLU"
    ),
    "a norm that the user reads": (
        lambda: rectified(use=lambda y, norm: mx.sym.Group([y, norm])), "'norm' is read by others than the ReLU"
    ),
    "a norm whose mean is read": (
        lambda: rectified(output_mean_var=True, use=lambda y, norm: mx.sym.Group([y, norm[1]])),
        "'norm' is read by others than the ReLU",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


@pytest.mark.parametrize("attrs", [{}, {"fix_gamma": False}, {"use_global_stats": True}, {"eps": 1e-5, "axis": 1}])
def test_batch_norm_with_its_relu_is_found(attrs: dict[str, Any]) -> None:
    assert BATCH_NORM_RELU.name in found_in(lambda: rectified(**attrs))[0]


def test_relu_operator_is_found() -> None:
    assert BATCH_NORM_RELU.name in found_in(lambda: mx.sym.relu(mx.sym.BatchNorm(var("x"))))[0]


def test_other_activations_are_no_relu() -> None:
    assert_nothing(lambda: rectified("sigmoid"))


def test_nothing_is_found_without_onednn() -> None:
    found, missed = find(graph_of(rectified()), setting=Setting())
    assert BATCH_NORM_RELU.name not in {each.pattern for each in (*found, *missed)}


@pytest.mark.parametrize(("shape", "dtype", "reason"), [
    ((2, 3, 4, 4), "float32", ""),
    ((2, 3, 24), "float32", "expected shape (N,C,Y,X), got (2, 3, 24)"),
    ((2, 3, 4, 4, 4), "float32", "expected shape (N,C,Y,X), got (2, 3, 4, 4, 4)"),
    ((2, 3, 4, 4), "float64", "expected arrays of one type, float32, got float64"),
    ((2, 3, 2, 2), "float32", "too small: 96 bytes, expected 256 or more"),
])  # fmt: skip
def test_shape_and_type_decide(shape: tuple[int, ...], dtype: str, reason: str) -> None:
    graph = graph_of(rectified())
    (fusion,), _ = find(graph, setting=Setting(onednn_norm=True))
    types = {entry: TensorType(shape if entry == Entry(0) else shape[1:2], FLAGS[dtype]) for entry in fusion.shapes}
    assert fusion_blocker(fusion, types) == reason
