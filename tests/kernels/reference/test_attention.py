"""Attention by loops over its keys; `test_reference` has the gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.support.reference.attention import (
    attention,
    attention_grad,
    draw_mask,
    draw_mask_grad,
    mlp_score,
    weighted_sum,
)

GENERATOR = np.random.default_rng(3)
N, TQ, TK, D, V = 2, 3, 4, 5, 2
Q, K, VALUES = (GENERATOR.normal(size=shape) for shape in ((N, TQ, D), (N, TK, D), (N, TK, V)))
MASK = GENERATOR.normal(size=(1, 1, TQ, TK))


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("lengths", [None, np.array([4, 2])])
def test_attention_equals_a_loop_over_keys(lengths: Any, mask: Any) -> None:
    out, lse = attention(Q, K, VALUES, lengths, mask, scale=0.3)
    for n, t in np.ndindex(N, TQ):
        keys = range(TK if lengths is None else int(lengths[n]))
        scores = [0.3 * float(Q[n, t] @ K[n, k]) + (0 if mask is None else mask[0, 0, t, k]) for k in keys]
        total = sum(map(math.exp, scores))
        assert lse[n, t] == pytest.approx(math.log(total))
        expected = sum(math.exp(score) / total * VALUES[n, k] for score, k in zip(scores, keys))
        np.testing.assert_allclose(out[n, t], expected)


def test_attention_without_keys_gives_zeros_and_no_gradient() -> None:
    lengths = np.array([0, 4])
    out, lse = attention(Q, K, VALUES, lengths)
    assert not out[0].any()
    assert np.isneginf(lse[0]).all()
    gradients = attention_grad(np.ones_like(out), None, Q, K, VALUES, lengths)
    assert not any(each[0].any() for each in gradients[:3])
    assert all(each[1].any() for each in gradients[:3])


@pytest.mark.parametrize("masking", [1, 2])
def test_a_mask_that_selects(masking: int) -> None:
    mask = np.array([[1.0, 0, 2, 0], [0, 0, 0, 0]])[:, None, None]
    out, _ = attention(Q, K, VALUES, None, mask, masking=masking, fill=0.5)
    for n, t in np.ndindex(N, TQ):
        exps = [math.exp(float(Q[n, t] @ K[n, k]) if mask[n, 0, 0, k] else 0.5) for k in range(TK)]
        weights = [each / sum(exps) * (mask[n, 0, 0, k] if masking == 2 else 1) for k, each in enumerate(exps)]
        np.testing.assert_allclose(out[n, t], sum(weight * VALUES[n, k] for k, weight in enumerate(weights)))


def test_dropout_of_weights() -> None:
    bits, factor = np.packbits(GENERATOR.integers(0, 2, N * TQ * TK), bitorder="little"), np.array([1.25])
    out, _ = attention(Q, K, VALUES, None, None, bits, factor)
    kept = np.unpackbits(bits, bitorder="little")[: N * TQ * TK].reshape(N, TQ, TK)
    weights = np.exp(np.einsum("nqd,nkd->nqk", Q, K))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, np.einsum("nqk,nkd->nqd", weights * kept * 1.25, VALUES))


def test_mask_of_inference_drops_nothing() -> None:
    sizes = [np.zeros(size) for size in (N, TQ, TK)]
    bits, factor = draw_mask(np.ones(1), *sizes, keep=0.5)
    assert np.unpackbits(bits).sum() == N * TQ * TK
    assert factor == 1
    for first in (0.0, 2.0):
        bits, factor = draw_mask(np.array([first]), *sizes, keep=0.5, seed=3)
        kept = np.unpackbits(bits, bitorder="little")
        assert kept[0] == first / 2
        assert 5 < kept.sum() < 19
        assert factor == 2
    assert not any(each.any() for each in draw_mask_grad(None, None, np.ones(1), *sizes, keep=0.5) if each is not None)


# Attention of a recurrent decoder.


@pytest.mark.parametrize("normed", [False, True])
def test_scores_of_a_layer_with_tanh(normed: bool) -> None:
    query, v = GENERATOR.normal(size=(N, D)), GENERATOR.normal(size=D)
    gamma, beta = (GENERATOR.normal(size=D), GENERATOR.normal(size=D)) if normed else (None, None)
    (found,) = mlp_score(K, query, v, gamma, beta, eps=1e-2)
    for n, k in np.ndindex(N, TK):
        total = K[n, k] + query[n]
        if gamma is not None and beta is not None:
            total = (total - total.mean()) / np.sqrt(total.var() + 1e-2) * gamma + beta
        assert found[n, k] == pytest.approx(float(v @ np.tanh(total)))


def test_a_weighted_sum() -> None:
    weights = GENERATOR.normal(size=(N, TK))
    (found,) = weighted_sum(weights, VALUES)
    for n in range(N):
        np.testing.assert_allclose(found[n], sum(weights[n, k] * VALUES[n, k] for k in range(TK)))
