"""Softmax outputs with their layer: which are found, and why others are not."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

from echo.passes.patterns.softmax_loss import SOFTMAX_OUTPUT
from tests.passes.patterns.near_misses import Miss, Symbol, assert_found, assert_missed, dense, var


def softmax(seen: bool = False, **more: Any) -> Symbol:
    scores = dense(var("x"), 9, "scores")
    found = mx.sym.SoftmaxOutput(scores, var("label"), name="softmax", **more)
    return mx.sym.Group([found, scores]) if seen else found


MISSES: dict[str, Miss] = {
    "softmax over channels": (lambda: softmax(multi_output=True), "a softmax output with multi_output"),
    "softmax with a head gradient": (lambda: softmax(out_grad=True), "a softmax output with out_grad"),
    "softmax whose scores are read": (
        lambda: softmax(seen=True), "the scores 'scores' are read by others than the softmax"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


def test_softmax_output_with_its_layer_is_found() -> None:
    assert_found(softmax, SOFTMAX_OUTPUT.name)
