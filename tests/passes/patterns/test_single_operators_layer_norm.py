"""Layer norms: which are found, and why others are not."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

from echo.passes.patterns.single_operators import LAYER_NORM
from tests.passes.patterns.near_misses import Miss, Symbol, assert_found, assert_missed, var


def normed(**more: Any) -> Symbol:
    found = mx.sym.LayerNorm(var("x"), name="norm", **more)
    return mx.sym.Group(list(found)) if len(found) > 1 else found


MISSES: dict[str, Miss] = {
    "layer norm over the batch": (
        lambda: normed(axis=0), "a layer norm over axis 0: expected the last one, -1"
    ),
    "layer norm whose mean is read": (
        lambda: normed(output_mean_var=True), "a layer norm whose mean and variance are read"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


def test_layer_norm_is_found() -> None:
    assert_found(normed, LAYER_NORM.name)
