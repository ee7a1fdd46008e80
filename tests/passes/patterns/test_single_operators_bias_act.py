"""Activations of sums with a bias: which are found, and why others are not."""

from __future__ import annotations

from typing import Callable

import mxnet as mx
import pytest

from echo.passes.patterns.single_operators import BIAS_ACT
from tests.passes.patterns.near_misses import H, Miss, Symbol, assert_found, assert_missed, dense, var


def biased_activation(seen: bool = False, kind: str = "softrelu", first: bool = False) -> Symbol:
    operands = mx.sym.exp(var("x")), var("bias")
    total = mx.sym.broadcast_add(*(operands[::-1] if first else operands), name="total")
    found = mx.sym.Activation(total, act_type=kind)
    return mx.sym.Group([found, total]) if seen else found


MISSES: dict[str, Miss] = {
    "a bias within a product": (
        lambda: mx.sym.tanh(dense(var("x"), H, "layer")),
        "the bias of 'layer' is added within its product, where it costs next to nothing",
    ),
    "a bias that comes first": (
        lambda: biased_activation(first=True), "what may be a bias comes first in 'total': the order of arguments"
    ),
    "a sum with a bias that is read": (
        lambda: biased_activation(seen=True),
        "the sum 'total' with a bias is read by others than the activation",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


@pytest.mark.parametrize("build", [biased_activation, lambda: biased_activation(kind="tanh")])
def test_activation_of_a_biased_sum_is_found(build: Callable[[], Symbol]) -> None:
    assert_found(build, BIAS_ACT.name)
