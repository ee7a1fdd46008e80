"""Attention: scores, weights, and what they weigh."""

from __future__ import annotations

import numpy as np

from echo.kernels.reference.arrays import (
    Array,
    Arrays,
    Maybe,
    counts_of,
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


def _scores(q: Array, k: Array, lengths: Maybe, bias: Maybe, scale: float) -> Array:
    """Scores [N,Tq,Tk], -inf for the keys beyond the lengths; padding does not count, whatever it holds."""
    inside = np.arange(k.shape[1]) < counts_of(lengths, len(k), k.shape[1])[:, None]
    scores = scale * np.einsum("nqd,nkd->nqk", q, np.where(inside[..., None], k, 0.0))
    if bias is not None:
        scores = scores + bias
    return np.where(inside[:, None], scores, -np.inf)


def _softmax(scores: Array) -> tuple[Array, Array]:
    """The softmax over the last axis and the logarithm of its denominator; zeros and -inf where every score is -inf."""
    most = scores.max(-1, initial=-np.inf, keepdims=True)
    exps = np.exp(scores - np.where(np.isneginf(most), 0.0, most))
    total = exps.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (most + np.log(total))[..., 0]
    return exps / np.where(total == 0, 1.0, total), lse


def weighted_sum(w: Array, values: Array) -> Arrays:
    """The context of attention: w [B,T] are its weights, values [B,T,H]. The sum over T of their product, [B,H]."""
    w, values = double(w, values)
    return (np.einsum("bt,bth->bh", w, values),)


def weighted_sum_grad(dout: Maybe, w: Array, values: Array, out: Maybe = None) -> Arrays:
    """The gradients of w and values."""
    w, values = double(w, values)
    dout = or_zeros(dout, values.sum(axis=1))
    return np.einsum("bh,bth->bt", dout, values), np.einsum("bt,bh->bth", w, dout)


def attention(q: Array, k: Array, v: Array, lengths: Maybe = None, bias: Maybe = None, *, scale: float = 1.0) -> Arrays:
    """Scaled dot-product attention (Vaswani et al. 2017), without its [Tq,Tk] maps in memory (Dao et al. 2022).

    q [N,Tq,D], k [N,Tk,D], v [N,Tk,Dv], lengths [N] (keys that count), bias [Tq,Tk]. Returns out [N,Tq,Dv] and the
    logarithms of the softmax's denominators, lse [N,Tq].
    """
    q, k, v, bias = double(q, k, v, bias)
    weights, lse = _softmax(_scores(q, k, lengths, bias, scale))
    inside = np.arange(v.shape[1]) < counts_of(lengths, len(v), v.shape[1])[:, None]
    return np.einsum("nqk,nkd->nqd", weights, np.where(inside[..., None], v, 0.0)), lse


def attention_grad(
    dout: Maybe, dlse: Maybe, q: Array, k: Array, v: Array, lengths: Maybe = None, bias: Maybe = None,
    out: Maybe = None, lse: Maybe = None, *, scale: float = 1.0,
) -> Arrays:  # fmt: skip
    """The gradients of q, k and v, and zeros for lengths and bias; ``dlse`` is not read."""
    q, k, v, bias = double(q, k, v, bias)
    inside = (np.arange(k.shape[1]) < counts_of(lengths, len(k), k.shape[1])[:, None])[..., None]
    k, v = np.where(inside, k, 0.0), np.where(inside, v, 0.0)
    weights, _ = _softmax(_scores(q, k, lengths, bias, scale))
    dout = or_zeros(dout, np.zeros((*q.shape[:2], v.shape[2])))
    dweights = np.einsum("nqd,nkd->nqk", dout, v)
    dscores = scale * weights * (dweights - (weights * dweights).sum(-1, keepdims=True))
    return (
        np.einsum("nqk,nkd->nqd", dscores, k),
        np.einsum("nqk,nqd->nkd", dscores, q),
        np.einsum("nqk,nqd->nkd", weights, dout),
        None if lengths is None else np.zeros(len(k)),
        None if bias is None else np.zeros(bias.shape),
    )
