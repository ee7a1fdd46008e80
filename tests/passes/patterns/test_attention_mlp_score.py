"""Attention scores of a layer with tanh: which are found, and why others are not."""

from __future__ import annotations

from typing import Callable

import mxnet as mx
import pytest

from echo.passes.patterns.attention import MLP_SCORE
from tests.passes.patterns.near_misses import (
    Miss,
    Symbol,
    assert_found,
    assert_missed,
    assert_nothing,
    tanh,
    var,
)


def score(axis: int = -1, seen: bool = False) -> Symbol:
    mixed = mx.sym.broadcast_add(var("keys"), mx.sym.expand_dims(var("query"), axis=1), name="mixed")
    norm = mx.sym.LayerNorm(mixed, axis=axis, name="norm")
    found = mx.sym.FullyConnected(tanh(norm), var("v"), num_hidden=1, no_bias=True, flatten=False, name="score")
    return mx.sym.Group([found, mixed]) if seen else found


MISSES: dict[str, Miss] = {
    "scores normalized over time": (
        lambda: score(axis=1), "attention scores with a layer norm along another axis than the last"
    ),
    "scores whose sum is read": (
        lambda: score(seen=True), "'mixed', inside of the attention scores, is read from outside"
    ),
}  # fmt: skip


def biased_score() -> Symbol:
    mixed = mx.sym.broadcast_add(var("keys"), mx.sym.expand_dims(var("query"), axis=1))
    return mx.sym.FullyConnected(tanh(mixed), num_hidden=1, flatten=False, name="score")


def flat_score() -> Symbol:
    mixed = mx.sym.broadcast_add(var("keys"), mx.sym.expand_dims(var("query"), axis=1))
    return mx.sym.FullyConnected(tanh(mixed), num_hidden=1, no_bias=True, name="score")


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


def test_mlp_score_is_found() -> None:
    assert_found(score, MLP_SCORE.name)


@pytest.mark.parametrize("build", [biased_score, flat_score])
def test_biased_or_flat_score_is_not_found(build: Callable[[], Symbol]) -> None:
    assert_nothing(build)
