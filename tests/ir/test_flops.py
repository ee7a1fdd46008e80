"""Floating-point operations, against loops that count each multiplication with its addition."""

from __future__ import annotations

import itertools
import math

import pytest

from echo.ir import flops
from echo.ir.op_spec import Formula, Shape


def counted(*sizes: int) -> float:
    """Two operations in the innermost of these loops."""
    return 2.0 * sum(1 for _ in itertools.product(*map(range, sizes)))


CASES: dict[str, tuple[Formula, list[Shape], Shape, float]] = {
    "convolution": (flops.convolution, [(2, 3, 6, 6), (4, 3, 3, 3)], (2, 4, 4, 4), counted(2, 4, 4, 4, 3, 3, 3)),
    "in groups": (flops.convolution, [(2, 4, 6, 6), (4, 1, 3, 3)], (2, 4, 4, 4), counted(2, 4, 4, 4, 1, 3, 3)),
    "deconvolution": (flops.deconvolution, [(2, 4, 4, 4), (4, 3, 3, 3)], (2, 3, 6, 6), counted(2, 4, 4, 4, 3, 3, 3)),
    "dense": (flops.dense, [(5, 7), (3, 7), (3,)], (5, 3), counted(5, 3, 7)),
    "attention": (flops.attention, [(2, 5, 4), (2, 6, 4), (2, 6, 3)], (2, 5, 3), counted(2, 5, 6, 4 + 3)),
    "layer": (flops.recurrent_layer, [(5, 2, 3), (16, 3), (16,), (16, 4)], (5, 2, 4), counted(5, 2, 16, 3 + 4)),
    "rnn": (flops.rnn, [(5, 2, 3), (28,)], (5, 2, 4), counted(5, 2, 28)),
    "product": (flops.product, [(5, 7), (7, 3)], (5, 3), counted(5, 7, 3)),
    "products": (flops.product, [(2, 5, 7), (2, 7, 3)], (2, 5, 3), counted(2, 5, 7, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_operations_are_counted(name: str) -> None:
    formula, inputs, output, expected = CASES[name]
    assert math.isclose(formula(inputs, output), expected)
