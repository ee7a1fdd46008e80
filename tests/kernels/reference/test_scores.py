"""Attention by loops over its keys; `test_reference` has the gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from echo.kernels.reference.scores import attention, attention_grad, mlp_score, weighted_sum

GENERATOR = np.random.default_rng(3)
N, TQ, TK, D, V = 2, 3, 4, 5, 2
Q, K, VALUES = (GENERATOR.normal(size=shape) for shape in ((N, TQ, D), (N, TK, D), (N, TK, V)))
BIAS = GENERATOR.normal(size=(TQ, TK))


@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("lengths", [None, np.array([4, 2])])
def test_attention(lengths: Any, bias: Any) -> None:
    out, lse = attention(Q, K, VALUES, lengths, bias, scale=0.3)
    for n, t in np.ndindex(N, TQ):
        keys = range(TK if lengths is None else int(lengths[n]))
        scores = [0.3 * float(Q[n, t] @ K[n, k]) + (0 if bias is None else bias[t, k]) for k in keys]
        total = sum(map(math.exp, scores))
        assert lse[n, t] == pytest.approx(math.log(total))
        expected = sum(math.exp(score) / total * VALUES[n, k] for score, k in zip(scores, keys))
        np.testing.assert_allclose(out[n, t], expected)


def test_without_keys_nothing_comes_out_and_nothing_flows_back() -> None:
    lengths = np.array([0, 4])
    out, lse = attention(Q, K, VALUES, lengths)
    assert not out[0].any()
    assert np.isneginf(lse[0]).all()
    gradients = attention_grad(np.ones_like(out), None, Q, K, VALUES, lengths)
    assert not any(each[0].any() for each in gradients[:3])
    assert all(each[1].any() for each in gradients[:3])


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
