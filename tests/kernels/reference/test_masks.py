"""Masks: the bits say what is kept, what is dropped is multiplied by zero, and odd numbers stay odd."""

from __future__ import annotations

import numpy as np
import pytest

from echo.kernels.reference.masks import (
    apply_mask,
    apply_mask_grad,
    dropout,
    dropout_grad,
    pack_mask,
    philox,
    relu,
    relu_grad,
)

X = np.array([-2.0, -0.0, 0.0, 3.0, np.nan, np.inf, -np.inf, 1e-300, 5.0])


def bits(packed: np.ndarray, count: int) -> list[int]:
    return [int(packed[k // 8] >> (k % 8)) & 1 for k in range(count)]


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_dropout_keeps_a_share_and_scales_it(keep: float) -> None:
    x = np.ones(20_000)
    y, packed = dropout(x, keep=keep, seed=7, offset=3)
    kept = np.array(bits(packed, x.size), bool)
    assert set(np.unique(y)) == {0.0, 1 / keep}
    assert np.array_equal(y > 0, kept)
    assert abs(kept.mean() - keep) < 0.02
    (dx,) = dropout_grad(x * 2, None, None, None, packed, keep=keep)
    np.testing.assert_allclose(dx, 2 * y)
    other = dropout(x, keep=keep, seed=8, offset=3)[1]
    assert not np.array_equal(packed, other)


def test_words_go_on_where_an_offset_begins() -> None:
    assert np.array_equal(philox(5, 0, 40)[8:], philox(5, 2, 32))
    assert philox(5, 0, 3).shape == (3,)


def test_the_positive_part() -> None:
    y, packed = relu(X)
    assert bits(packed, X.size) == [0, 0, 0, 1, 0, 1, 0, 1, 1]
    assert y[:4].tolist() == [0, 0, 0, 3]
    assert np.isnan(y[4])
    (dx,) = relu_grad(np.arange(9.0), None, X, y, packed)
    assert dx.tolist() == [0, 0, 0, 3, 0, 5, 0, 7, 8]
    assert relu_grad(None, None, X, y, packed)[0].tolist() == [0] * 9


def test_a_mask_is_one_number_and_bits() -> None:
    mask = np.array([0, 2.5, 2.5, 0, 0, 0, 0, 0, 2.5])
    packed, scale = pack_mask(mask)
    assert (packed.tolist(), scale.tolist()) == ([6, 1], [2.5])
    assert pack_mask(np.zeros(3))[1].tolist() == [0]
    x = np.arange(9.0)
    assert apply_mask(x, packed, scale)[0].tolist() == (x * mask).tolist()
    with np.errstate(invalid="ignore"):
        assert np.isnan(apply_mask(np.full(9, np.inf), packed, scale)[0]).sum() == 6, "an infinity times zero"
    dx, dbits, dscale = apply_mask_grad(x, x, packed, scale)
    assert dx.tolist() == (x * mask).tolist()
    assert not dbits.any()
    assert not dscale.any()
