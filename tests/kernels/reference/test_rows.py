"""Rows, elements and masks, by their formulas; `test_reference` has the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.reference.rows import (
    ACTIVATIONS,
    apply_mask,
    apply_mask_grad,
    bias_act,
    dropout,
    dropout_grad,
    layer_norm,
    pack_mask,
    philox,
    relu,
    relu_grad,
    sequence_reverse,
    sequence_reverse_grad,
    softmax_output,
    softmax_output_grad,
)

GENERATOR = np.random.default_rng(2)
X, W, BIAS = GENERATOR.normal(size=(4, 3)), GENERATOR.normal(size=(5, 3)), GENERATOR.normal(size=5)
LABEL = np.array([1.0, 4.0, 0.0, 1.0])


@pytest.mark.parametrize("bias", [None, BIAS])
def test_softmax_output_gives_probabilities(bias: Any) -> None:
    (found,) = softmax_output(X, W, bias, LABEL)
    scores = X @ W.T + (0 if bias is None else bias)
    np.testing.assert_allclose(found, np.exp(scores) / np.exp(scores).sum(1, keepdims=True))
    large = softmax_output(1000 * X, W, bias, LABEL)[0]
    np.testing.assert_allclose(large.sum(1), 1)


def cross_entropy(x: Any, count: float) -> float:
    (prob,) = softmax_output(x, W, BIAS, LABEL)
    return float(-np.log(prob[np.arange(4), LABEL.astype(int)]).sum() / count)


@pytest.mark.parametrize(("normalization", "count"), [(0, 1.0), (1, 4.0), (2, 2.0)])
def test_the_gradient_is_that_of_the_cross_entropy(normalization: int, count: float) -> None:
    """Divided by one, by the rows, or by the rows that are not to be ignored: here two."""
    (prob,) = softmax_output(X, W, BIAS, LABEL)
    dx, _, db, dlabel = softmax_output_grad(
        None, X, W, BIAS, LABEL, prob, normalization=normalization, ignore_label=1.0, grad_scale=3.0
    )
    step = 1e-6 * GENERATOR.normal(size=X.shape)
    change = (cross_entropy(X + step, count) - cross_entropy(X - step, count)) / 2
    np.testing.assert_allclose((dx * step).sum(), 3 * change, rtol=1e-6)
    assert not dlabel.any()
    assert db.shape == (5,)


def test_rows_that_are_ignored_and_labels_that_are_smoothed() -> None:
    (prob,) = softmax_output(X, W, BIAS, LABEL)
    ignored = softmax_output_grad(None, X, W, None, LABEL, prob, use_ignore=1.0, ignore_label=1.0)
    assert not ignored[0][[0, 3]].any()
    assert ignored[0][[1, 2]].all()
    assert ignored[2] is None
    smooth = softmax_output_grad(None, X, W, BIAS, LABEL, prob, smooth_alpha=0.4)[2]
    target = np.full((4, 5), 0.1)
    target[np.arange(4), LABEL.astype(int)] = 0.6
    np.testing.assert_allclose(smooth, (prob - target).sum(0))


def test_norms_over_the_last_axis() -> None:
    gamma, beta = np.array([2.0, 1.0, 0.5]), np.array([0.0, 1.0, -1.0])
    (found,) = layer_norm(X, gamma, beta, eps=1e-2)
    for row, expected in zip(X, found):
        np.testing.assert_allclose(expected, (row - row.mean()) / np.sqrt(row.var() + 1e-2) * gamma + beta)
    assert layer_norm(np.zeros((0, 3)), gamma, beta)[0].shape == (0, 3)


@pytest.mark.parametrize("act", range(5))
def test_bias_act_equals_its_formula(act: int) -> None:
    formula = {
        "relu": lambda x: np.maximum(x, 0), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh,
        "softrelu": lambda x: np.log1p(np.exp(x)), "none": lambda x: x,
    }[ACTIVATIONS[act]]  # fmt: skip
    np.testing.assert_allclose(bias_act(X, BIAS[:3], act=act)[0], formula(X + BIAS[:3]))


def test_only_the_steps_within_a_length_are_turned_round() -> None:
    x = np.arange(8.0).reshape(4, 2, 1)
    assert sequence_reverse(x)[0][:, :, 0].tolist() == [[6, 7], [4, 5], [2, 3], [0, 1]]
    lengths = np.array([3.0, 0.0])
    assert sequence_reverse(x, lengths)[0][:, :, 0].tolist() == [[4, 1], [2, 3], [0, 5], [6, 7]]
    dx, dlengths = sequence_reverse_grad(sequence_reverse(x, lengths)[0], x, lengths)
    assert np.array_equal(dx, x)
    assert dlengths.tolist() == [0, 0]


# Masks: bits of kept elements, others are multiplied by zero, and odd numbers stay odd.

NUMBERS = np.array([-2.0, -0.0, 0.0, 3.0, np.nan, np.inf, -np.inf, 1e-300, 5.0])


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
    y, packed = relu(NUMBERS)
    assert bits(packed, NUMBERS.size) == [0, 0, 0, 1, 0, 1, 0, 1, 1]
    assert y[:4].tolist() == [0, 0, 0, 3]
    assert np.isnan(y[4])
    (dx,) = relu_grad(np.arange(9.0), None, NUMBERS, y, packed)
    assert dx.tolist() == [0, 0, 0, 3, 0, 5, 0, 7, 8]
    assert relu_grad(None, None, NUMBERS, y, packed)[0].tolist() == [0] * 9


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
