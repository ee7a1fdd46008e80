"""Rectified arrays: which are found, and why others are not."""

from __future__ import annotations

from typing import Callable

import mxnet as mx
import pytest

from echo.passes.patterns.single_operators import RELU
from tests.passes.patterns.near_misses import H, Miss, Symbol, assert_found, assert_missed, dense, dropped, same, var


def rectified(use: Callable[[Symbol], Symbol] = mx.sym.sum) -> Symbol:
    return use(mx.sym.Activation(var("x"), act_type="relu", name="positive"))


def pooled(x: Symbol) -> Symbol:
    return mx.sym.Pooling(x, kernel=(2, 2), pool_type="max", name="pool")


MISSES: dict[str, Miss] = {
    "a rectified array that is pooled": (
        lambda: rectified(pooled), "its output is stashed anyway: read by the gradient of 'pool'"
    ),
    "a rectified array that is multiplied in another form": (
        lambda: rectified(lambda x: dense(dropped(mx.sym.Reshape(x, shape=(-1, 4))), H, "next")),
        "its output is stashed anyway: read by the gradient of 'next'",
    ),
    "a rectified array that the user reads": (
        lambda: rectified(same), "its output is stashed anyway: read by the user"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


@pytest.mark.parametrize("build", [rectified, lambda: rectified(lambda x: mx.sym.Reshape(x, shape=(-1, 4)) + var("y"))])
def test_rectified_array_is_found(build: Callable[[], Symbol]) -> None:
    assert_found(build, RELU.name)
