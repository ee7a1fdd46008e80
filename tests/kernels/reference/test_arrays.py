"""The helpers of the references, at the ends of the numbers, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.reference.arrays import (
    counts_of,
    double,
    normalised,
    normalised_grad,
    or_zeros,
    sigmoid,
    sigmoid_slope,
    tanh_slope,
)

X = np.array([-700.0, -40.0, -1.0, 0.0, 0.5, 40.0, 700.0])


def test_functions_and_slopes_are_accurate_where_they_nearly_vanish() -> None:
    """Held against exponentials of long doubles."""
    e = np.exp(-np.abs(X).astype(np.longdouble))
    expected = np.where(X < 0, e / (1 + e), 1 / (1 + e))
    np.testing.assert_allclose(sigmoid(X), expected.astype(float), rtol=1e-13)
    np.testing.assert_allclose(sigmoid_slope(X), (e / (1 + e) ** 2).astype(float), rtol=1e-13)
    small = X[1:-1] / 2
    e = np.exp(-np.abs(2 * small).astype(np.longdouble))
    np.testing.assert_allclose(tanh_slope(small), (4 * e / (1 + e) ** 2).astype(float), rtol=1e-13)


@pytest.mark.parametrize(
    ("lengths", "expected"), [(None, [5, 5, 5]), ([2.9, -1, 7], [2, 0, 5]), ([np.nan, np.inf, 3], [0, 5, 3])]
)
def test_lengths_are_whole_numbers_within_the_steps(lengths: Any, expected: list[int]) -> None:
    assert counts_of(None if lengths is None else np.array(lengths), 3, 5).tolist() == expected


def test_absent_arrays_become_none_or_zeros() -> None:
    one, none = double(np.ones(2, np.float16), None)
    assert (one.dtype, none) == (np.float64, None)
    assert or_zeros(None, np.ones((2, 3))).tolist() == np.zeros((2, 3)).tolist()
    assert or_zeros(np.ones(2, np.float32), one).dtype == np.float64


def test_norms_and_their_gradients() -> None:
    generator = np.random.default_rng(0)
    x, dy = generator.normal(3, 5, (4, 6)), generator.normal(0, 1, (4, 6))
    y, scale = normalised(x, 0.0)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(-1), 1)
    np.testing.assert_allclose(y / scale + x.mean(-1, keepdims=True), x)
    step = 1e-6 * generator.normal(0, 1, x.shape)
    change = (dy * (normalised(x + step, 0.0)[0] - normalised(x - step, 0.0)[0])).sum() / 2
    np.testing.assert_allclose((normalised_grad(dy, y, scale) * step).sum(), change, rtol=1e-6)
