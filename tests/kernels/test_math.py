"""The functions and conversions under the CPU kernels, looked at through the kernels: every float16, many floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support import reference
from tests.support.kernel_calls import call

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 88, -88, 89, -89, 104, -104])
EVERY_HALF = np.arange(2**16, dtype=np.uint16).view(np.float16)


def every_so_many_floats(step: int) -> Any:
    """Floats of every size and both signs."""
    return np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def through(act: int, x: Any) -> Any:
    y = np.empty_like(x)
    call("bias_act", [x[None], np.full(x.size, -0.0, x.dtype)], [y[None]], params=(act,))  # 0 would take -0 to 0
    return y


def ulps(got: Any, expected: Any) -> Any:
    """Distances in units of the last place of the expected value."""
    unit = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    return np.abs(got.astype(np.float64) - expected) / unit


@pytest.mark.parametrize(
    ("act", "function", "least"),
    [
        (1, reference.sigmoid, -86.6),
        (2, np.tanh, -np.inf),
        (3, lambda x: np.logaddexp(0.0, x), -86.6),
    ],
    ids=["sigmoid", "tanh", "softplus"],
)
def test_functions_are_within_three_ulps(act: int, function: Any, least: float) -> None:
    """Three at most; numbers below 2^-125 may be 0."""
    x = np.concatenate([SPECIAL.astype(np.float32), every_so_many_floats(4999)])
    got = through(act, x)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = function(x.astype(np.float64))
    assert np.array_equal(np.isnan(got), np.isnan(x))
    infinite = np.isinf(x) & ~np.isnan(x)
    assert np.array_equal(got[infinite], expected[infinite])
    usual = np.isfinite(x) & (x > least)
    assert ulps(got[usual], expected[usual]).max() <= 3.0
    small = np.isfinite(x) & (x <= least)
    assert np.abs(got[small] - expected[small]).max(initial=0.0) <= 2.0**-124
    if act == 2:
        assert np.array_equal(np.signbit(got[~np.isnan(x)]), np.signbit(x[~np.isnan(x)]))


def test_every_float16_is_read_right() -> None:
    """relu gives what it reads, for positive numbers."""
    y, bits = np.empty_like(EVERY_HALF), np.empty(2**13, np.uint8)
    call("relu", [EVERY_HALF], [y, bits])
    with np.errstate(invalid="ignore"):
        expected = np.where(EVERY_HALF <= 0, np.float16(0), EVERY_HALF)
        positive = EVERY_HALF > 0
    np.testing.assert_array_equal(y, expected)
    assert np.array_equal(np.unpackbits(bits, bitorder="little"), positive)


@pytest.mark.parametrize("other", [1.0, 6e-8, 0.33325, 60000.0, -2048.0, 6.1e-5, np.inf])
def test_float16_is_rounded_to_nearest(other: float) -> None:
    """Sums in float32 are rounded as NumPy rounds them, from subnormal numbers to infinities."""
    y = np.empty_like(EVERY_HALF)
    with np.errstate(invalid="ignore", over="ignore"):
        b = np.full(EVERY_HALF.shape, other, np.float16)
        call("bias_act", [EVERY_HALF[None], b], [y[None]], params=(4,))
        expected = (EVERY_HALF.astype(np.float32) + b.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(y, expected)


def test_float16_gradients_are_added_in_float32() -> None:
    """A sum is rounded once."""
    dy, before = np.array([2048.0, 1.0], np.float16), np.array([1.0, 2.0**-11], np.float16)
    dx = before.copy()
    call("relu_grad", [dy, None, None, None, np.array([3], np.uint8)], [dx], req=[3])
    np.testing.assert_array_equal(dx, (dy.astype(np.float64) + before).astype(np.float16))
