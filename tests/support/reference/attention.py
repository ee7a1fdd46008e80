"""Attention: dot products with masks and dropout, and the scores and weighted sums of recurrent decoders."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.support.reference.arrays import (
    Array,
    Arrays,
    Maybe,
    counts_of,
    double,
    normalised,
    normalised_grad,
    or_zeros,
    tanh_slope,
    unpacked,
)
from tests.support.reference.rows import dropout

_ADDS, _MULTIPLIES = 0, 2


class _Weights(NamedTuple):
    """The softmax [N,Tq,Tk], its factors by mask and dropout, the scores that count, and its denominators."""

    softmax: Array
    factors: Array
    open: Array
    lse: Array


def _weights(q: Array, k: Array, lengths: Maybe, mask: Maybe, bits: Maybe, factor: Maybe, scale: float,
             masking: float, fill: float, root: float) -> _Weights:  # fmt: skip
    """Padding does not count, whatever it holds: scores are -inf for keys beyond the lengths."""
    shape = (len(q), q.shape[1], k.shape[1])
    per_query = lengths is not None and lengths.size == shape[0] * shape[1]
    counts = counts_of(lengths, shape[0] * (shape[1] if per_query else 1), shape[2])
    counts = counts.reshape(shape[0], shape[1] if per_query else 1, 1)
    inside = np.broadcast_to(np.arange(shape[2]) < counts, shape)
    scale = scale / np.sqrt(max(q.shape[2], 1)) if root else scale
    scores = scale * np.einsum("nqd,nkd->nqk", q, np.where(inside.any(1)[..., None], k, 0.0))
    is_open, factors = inside, np.ones(shape)
    if mask is not None:
        heads = mask.shape[1] if mask.shape[1] > 1 else max(shape[0] // len(mask), 1) if len(mask) > 1 else 1
        mask = np.broadcast_to(mask, (shape[0] // heads, heads, *shape[1:])).reshape(shape)
        scores = scores + mask if masking == _ADDS else np.where(mask != 0, scores, fill)
        is_open = inside if masking == _ADDS else inside & (mask != 0)
        factors = mask if masking == _MULTIPLIES else factors
    if bits is not None and factor is not None:
        factors = factors * np.where(unpacked(bits, int(np.prod(shape))).reshape(shape), factor[0], 0.0)
    softmax, lse = _softmax(np.where(inside, scores, -np.inf), inside)
    return _Weights(softmax, np.where(inside, factors, 0.0), is_open, lse)


def _softmax(scores: Array, inside: Array) -> tuple[Array, Array]:
    """The softmax over the keys inside and the logarithm of its denominator; zeros and -inf where there is no key.

    NaNs where all of them are -inf, as in MXNet.
    """
    most = scores.max(-1, initial=-np.inf, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        exps = np.where(inside, np.exp(scores - most), 0.0)
        total = exps.sum(-1, keepdims=True)
        lse = (most + np.log(total))[..., 0]
    return exps / np.where(total == 0, 1.0, total), lse


def _inside(array: Array, lengths: Maybe, queries: int) -> Array:
    """Keys or values with zeros where no query sees them."""
    if lengths is None:
        return array
    per_query = lengths.size == len(array) * queries
    counts = counts_of(lengths, lengths.size, array.shape[1]).reshape(len(array), queries if per_query else 1)
    most = counts.max(1, initial=0)
    return np.where((np.arange(array.shape[1]) < most[:, None])[..., None], array, 0.0)


def attention(
    q: Array, k: Array, v: Array, lengths: Maybe = None, mask: Maybe = None, bits: Maybe = None, factor: Maybe = None,
    *, scale: float = 1.0, masking: float = 0, fill: float = 0.0, root: float = 0,
) -> Arrays:  # fmt: skip
    """Scaled dot-product attention (Vaswani et al. 2017), without its [Tq,Tk] maps in memory (Dao et al. 2022).

    q [N,Tq,D], k [N,Tk,D], v [N,Tk,Dv], lengths [N] or [N Tq] (keys that count), mask [Gb,Gh,R,Tk] for item n of batch
    n / heads and head n % heads, whose first three axes may be 1. ``root`` 1 divides scores by the
    root of D. ``masking`` 0: it is added to the
    scores; 1: they are ``fill`` where it is 0; 2: weights are multiplied by it, too. Bits (one a weight) and factor [1]
    are those of inverted dropout. Returns out [N,Tq,Dv] and the logarithms of the softmax's denominators, lse [N,Tq].
    """
    q, k, v, mask, factor = double(q, k, v, mask, factor)
    weights = _weights(q, k, lengths, mask, bits, factor, scale, masking, fill, root)
    return np.einsum("nqk,nkd->nqd", weights.softmax * weights.factors, _inside(v, lengths, q.shape[1])), weights.lse


def attention_grad(
    dout: Maybe, dlse: Maybe, q: Array, k: Array, v: Array, lengths: Maybe = None, mask: Maybe = None,
    bits: Maybe = None, factor: Maybe = None, out: Maybe = None, lse: Maybe = None,
    *, scale: float = 1.0, masking: float = 0, fill: float = 0.0, root: float = 0,
) -> Arrays:  # fmt: skip
    """The gradients of q, k and v, and zeros for the other inputs; ``dlse`` is not read."""
    q, k, v, mask, factor = double(q, k, v, mask, factor)
    k, v = _inside(k, lengths, q.shape[1]), _inside(v, lengths, q.shape[1])
    weights = _weights(q, k, lengths, mask, bits, factor, scale, masking, fill, root)
    dout = or_zeros(dout, np.zeros((*q.shape[:2], v.shape[2])))
    dweights = np.einsum("nqd,nkd->nqk", dout, v) * weights.factors
    dscores = weights.softmax * (dweights - (weights.softmax * dweights).sum(-1, keepdims=True))
    dscores = scale / (np.sqrt(max(q.shape[2], 1)) if root else 1) * np.where(weights.open, dscores, 0.0)
    return (
        np.einsum("nqk,nkd->nqd", dscores, k),
        np.einsum("nqk,nqd->nkd", dscores, q),
        np.einsum("nqk,nqd->nkd", weights.softmax * weights.factors, dout),
        *(None if array is None else np.zeros_like(array) for array in (lengths, mask, bits, factor)),
    )


def draw_mask(first: Array, items: Array, rows: Array, columns: Array, *, keep: float, seed: int = 0,
              offset: int = 0) -> Arrays:  # fmt: skip
    """The bits of a Dropout of all items, rows and columns, and what kept elements are multiplied by.

    ``first`` [1] is the Dropout of a single element, and tells whether anything is dropped: if it is 1, nothing is. The
    other bits are those of `dropout`.
    """
    count = items.size * rows.size * columns.size
    kept = np.ones(count, bool)
    if first[0] != 1:
        kept = unpacked(dropout(np.ones(count), keep=keep, seed=seed, offset=offset)[1], count) != 0  # type: ignore[arg-type]
        kept[:1] = first[0] != 0
    return np.packbits(kept, bitorder="little"), np.array([1.0 if first[0] == 1 else 1 / keep])


def draw_mask_grad(
    dbits: Maybe, dfactor: Maybe, first: Array, items: Array, rows: Array, columns: Array, bits: Maybe = None,
    factor: Maybe = None, *, keep: float, seed: int = 0, offset: int = 0,
) -> Arrays:  # fmt: skip
    """No gradient goes through a mask."""
    return tuple(np.zeros(array.shape) for array in (first, items, rows, columns))


# Attention of a recurrent decoder: scores, and the context that weights make of values.


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
