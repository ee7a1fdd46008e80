"""Attention of a decoder by loops over its keys; `test_reference` has the gradients."""

from __future__ import annotations

import numpy as np
import pytest

from echo.kernels.reference.scores import mlp_score, weighted_sum

GENERATOR = np.random.default_rng(3)
N, TQ, TK, D, V = 2, 3, 4, 5, 2
Q, K, VALUES = (GENERATOR.normal(size=shape) for shape in ((N, TQ, D), (N, TK, D), (N, TK, V)))


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
