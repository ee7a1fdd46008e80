"""Contexts of attention: which are found, and why others are not."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.passes.patterns.attention import WEIGHTED_SUM
from tests.passes.patterns.near_misses import Miss, Symbol, assert_found, assert_missed, assert_nothing, var


def context() -> Symbol:
    weighted = mx.sym.broadcast_mul(var("values"), mx.sym.softmax(var("scores"), axis=1), name="weighted")
    return mx.sym.Group([mx.sym.sum(weighted, axis=1), weighted])


MISSES: dict[str, Miss] = {
    "a context whose terms are read": (context, "the weighted values 'weighted' are read by others than the sum"),
}  # fmt: skip


def sum_over_batch() -> Symbol:
    return mx.sym.sum(mx.sym.broadcast_mul(var("values"), mx.sym.softmax(var("scores"), axis=1)), axis=0)


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


def test_another_structure_is_not_found() -> None:
    assert_nothing(sum_over_batch)


def test_context_of_attention_is_found() -> None:
    assert_found(lambda: context()[0], WEIGHTED_SUM.name)
