"""Attention of a recurrent decoder: scores, and what weights make of values."""

from __future__ import annotations

import numpy as np

from echo.kernels.reference.arrays import (
    Array,
    Arrays,
    Maybe,
    double,
    normalised,
    normalised_grad,
    or_zeros,
    tanh_slope,
)


def mlp_score(
    keys: Array, query: Array, v: Array, gamma: Maybe = None, beta: Maybe = None, *, eps: float = 1e-5
) -> Arrays:
    """Scores of additive attention (Bahdanau et al. 2015), after a layer norm (Ba et al. 2016) where gamma is there.

    keys [B,T,H], query [B,H], v, gamma and beta [H]; score [B,T] = v . tanh(norm(keys + query)).
    """
    keys, query, v, gamma, beta = double(keys, query, v, gamma, beta)
    total = keys + query[:, None]
    if gamma is not None and total.size:
        total = normalised(total, eps)[0] * gamma + beta
    return (np.tanh(total) @ v,)


def mlp_score_grad(
    dscore: Maybe, keys: Array, query: Array, v: Array, gamma: Maybe = None, beta: Maybe = None, score: Maybe = None,
    *, eps: float = 1e-5,
) -> Arrays:  # fmt: skip
    """The gradients of the five inputs; those of gamma and beta are None where these are absent."""
    keys, query, v, gamma, beta = double(keys, query, v, gamma, beta)
    dscore = or_zeros(dscore, keys[..., 0] if keys.shape[-1] else np.zeros(keys.shape[:2]))
    total, dgamma, dbeta = keys + query[:, None], None, None
    normed = gamma is not None and total.size
    if normed:
        norm, scale = normalised(total, eps)
        total = norm * gamma + beta
    dtotal = dscore[..., None] * v * tanh_slope(total)
    dv = np.einsum("bt,bth->h", dscore, np.tanh(total))
    if gamma is not None:
        dgamma, dbeta = np.zeros(gamma.shape), dtotal.sum((0, 1))
    if normed:
        dgamma = (dtotal * norm).sum((0, 1))
        dtotal = normalised_grad(dtotal * gamma, norm, scale)
    return dtotal, dtotal.sum(1), dv, dgamma, dbeta


def weighted_sum(w: Array, values: Array) -> Arrays:
    """The context of attention: w [B,T] are its weights, values [B,T,H]. The sum over T of their product, [B,H]."""
    w, values = double(w, values)
    return (np.einsum("bt,bth->bh", w, values),)


def weighted_sum_grad(dout: Maybe, w: Array, values: Array, out: Maybe = None) -> Arrays:
    """The gradients of w and values."""
    w, values = double(w, values)
    dout = or_zeros(dout, values.sum(axis=1))
    return np.einsum("bh,bth->bt", dout, values), np.einsum("bt,bh->bth", w, dout)
