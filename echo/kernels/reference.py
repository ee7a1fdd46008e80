"""What each kernel computes, in NumPy and float64: the specification, and the oracle of the kernels' tests.

NAME takes the inputs of NAME in ``include/echo_kernels.h`` in that order, and its parameters by name; it returns the
outputs as a tuple. NAME_grad takes the gradients of the outputs, the inputs and the outputs, and returns the gradients
of the inputs. None stands for an absent tensor; a gradient that is None counts as zeros. Gradients are derived by hand.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Maybe = Optional[Array]
Arrays = Tuple[Maybe, ...]


def sigmoid(x: Array) -> Array:
    """The logistic function."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


def _double(*arrays: Maybe) -> list[Any]:
    return [None if array is None else np.asarray(array, np.float64) for array in arrays]


def _or_zeros(gradient: Maybe, like: Array) -> Array:
    return np.zeros(like.shape) if gradient is None else np.asarray(gradient, np.float64)


def _counts(lengths: Maybe, batch: int, most: int) -> NDArray[np.int64]:
    """Lengths as whole numbers from 0 to ``most``; all where they are absent."""
    if lengths is None:
        return np.full(batch, most, np.int64)
    return np.clip(np.trunc(np.nan_to_num(np.asarray(lengths, np.float64))), 0, most).astype(np.int64)


# Recurrent cells ----------------------------------------------------------------------------------------------


def lstm_cell(pre: Array, c: Array) -> Arrays:
    """One step of an LSTM after its matrix products (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    pre [B,4H] holds the gates i, f, g, o before their non-linearities, c [B,H] the cell. Returns h and the next cell.
    """
    pre, c = _double(pre, c)
    i, f, g, o = np.split(pre, 4, axis=-1)
    c_next = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c_next), c_next


def lstm_cell_grad(dh: Maybe, dc_next: Maybe, pre: Array, c: Array, h: Maybe = None, c_next: Maybe = None) -> Arrays:
    """The gradients of pre and c."""
    pre, c = _double(pre, c)
    dh, dc_next = _or_zeros(dh, c), _or_zeros(dc_next, c)
    i, f, g, o = np.split(pre, 4, axis=-1)
    i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    tanh_c = np.tanh(f * c + i * g)
    dcell = dc_next + dh * o * (1 - tanh_c**2)
    gates = dcell * g * i * (1 - i), dcell * c * f * (1 - f), dcell * i * (1 - g**2), dh * tanh_c * o * (1 - o)
    return np.concatenate(gates, axis=-1), dcell * f


def lstm_norm_cell(pre: Array, c: Array, gamma: Array, beta: Array, *, eps: float) -> Arrays:
    """`lstm_cell` with a layer norm of the next cell in front of its tanh (Ba et al. 2016): h = o tanh(norm(c'))."""
    pre, c = _double(pre, c)
    i, f, g, o = np.split(pre, 4, axis=-1)
    c_next = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    normed = _normalised(c_next, eps)[0] * np.asarray(gamma, np.float64) + np.asarray(beta, np.float64)
    return sigmoid(o) * np.tanh(normed), c_next


def lstm_norm_cell_grad(
    dh: Maybe, dc_next: Maybe, pre: Array, c: Array, gamma: Array, beta: Array, h: Maybe = None, c_next: Maybe = None,
    *, eps: float,
) -> Arrays:  # fmt: skip
    """The gradients of pre, c, gamma and beta."""
    pre, c, gamma, beta = _double(pre, c, gamma, beta)
    dh, dc_next = _or_zeros(dh, c), _or_zeros(dc_next, c)
    i, f, g, o = np.split(pre, 4, axis=-1)
    i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    cell = f * c + i * g
    t = np.tanh(_normalised(cell, eps)[0] * gamma + beta)
    of_norm, dgamma, dbeta = layer_norm_grad(dh * o * (1 - t**2), cell, gamma, beta, None, eps=eps)
    d_cell = dc_next + of_norm
    gates = [d_cell * g * i * (1 - i), d_cell * c * f * (1 - f), d_cell * i * (1 - g**2), dh * t * o * (1 - o)]
    return np.concatenate(gates, axis=-1), d_cell * f, dgamma, dbeta


def gru_cell(x: Array, s: Array, h: Array) -> Arrays:
    """One step of a GRU after its matrix products, the reset gate behind the product (cuDNN's and MXNet's variant of
    Cho et al. 2014).

    x [B,3H] comes from the input, s [B,3H] from the state, both as r, z, n; h [B,H] is the state. Returns the next one.
    """
    x, s, h = _double(x, s, h)
    (x_r, x_z, x_n), (s_r, s_z, s_n) = np.split(x, 3, axis=-1), np.split(s, 3, axis=-1)
    z = sigmoid(x_z + s_z)
    n = np.tanh(x_n + sigmoid(x_r + s_r) * s_n)
    return ((1 - z) * n + z * h,)


def gru_cell_grad(dh_next: Maybe, x: Array, s: Array, h: Array, h_next: Maybe = None) -> Arrays:
    """The gradients of x, s and h."""
    x, s, h = _double(x, s, h)
    dh_next = _or_zeros(dh_next, h)
    (x_r, x_z, x_n), (s_r, s_z, s_n) = np.split(x, 3, axis=-1), np.split(s, 3, axis=-1)
    r, z = sigmoid(x_r + s_r), sigmoid(x_z + s_z)
    n = np.tanh(x_n + r * s_n)
    d_n = dh_next * (1 - z) * (1 - n**2)
    d_z = dh_next * (h - n) * z * (1 - z)
    d_r = d_n * s_n * r * (1 - r)
    return np.concatenate((d_r, d_z, d_n), axis=-1), np.concatenate((d_r, d_z, d_n * r), axis=-1), dh_next * z


def _steps(count: int, reverse: float) -> range:
    return range(count - 1, -1, -1) if reverse else range(count)


def softmax_output(x: Array, w: Array, b: Maybe, label: Array, **_: float) -> Arrays:
    """A fully connected layer and a softmax. x [N,I], w [V,I], b [V], label [N]; the probabilities [N,V]."""
    x, w = _double(x, w)
    scores = x @ w.T + (0.0 if b is None else np.asarray(b, np.float64))
    scores = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    return (scores / scores.sum(axis=1, keepdims=True),)


def softmax_output_grad(
    dprob: Maybe, x: Array, w: Array, b: Maybe, label: Array, prob: Array, *, grad_scale: float = 1.0,
    use_ignore: float = 0.0, ignore_label: float = -1.0, normalization: float = 0.0, smooth_alpha: float = 0.0,
) -> Arrays:  # fmt: skip
    """The gradients of x, w and b that MXNet's SoftmaxOutput defines, which knows its loss; none of the label."""
    x, w, label, prob = _double(x, w, label, prob)
    count, words = prob.shape
    target = np.full(prob.shape, smooth_alpha / (words - 1) if words > 1 else 0.0)
    known = (label >= 0) & (label < words)
    target[np.flatnonzero(known), label[known].astype(np.int64)] = 1 - smooth_alpha
    scores = prob - target
    if use_ignore:
        scores[label == ignore_label] = 0
    valid = max(1, np.count_nonzero(label.astype(np.int64) != int(ignore_label)))
    scores *= grad_scale / {0: 1, 1: max(1, count), 2: valid}[int(normalization)]
    return scores @ w, scores.T @ x, None if b is None else scores.sum(axis=0), np.zeros(label.shape)


def lstm_layer(
    x: Array, wi: Array, bi: Array, wh: Array, bh: Array, h0: Array, c0: Array, *, reverse: float = 0
) -> Arrays:
    """An LSTM over x [T,B,I], from T-1 down to 0 where ``reverse`` is 1. Returns y [T,B,H], hT, cT and pre [T,B,4H]."""
    x, wi, bi, wh, bh, h, c = _double(x, wi, bi, wh, bh, h0, c0)
    pre = x @ wi.T + bi + bh
    y = np.zeros((*x.shape[:2], h.shape[-1]))
    for t in _steps(len(x), reverse):
        pre[t] += h @ wh.T
        h, c = lstm_cell(pre[t], c)
        y[t] = h
    return y, h, c, pre


def lstm_layer_grad(
    dy: Maybe, dh_last: Maybe, dc_last: Maybe, dpre: Maybe,
    x: Array, wi: Array, bi: Array, wh: Array, bh: Array, h0: Array, c0: Array,
    y: Maybe = None, h_last: Maybe = None, c_last: Maybe = None, pre: Maybe = None, *, reverse: float = 0,
) -> Arrays:  # fmt: skip
    """The gradients of the seven inputs; none flows into ``pre`` from outside, and ``dpre`` is not read."""
    x, wi, bi, wh, bh, h0, c0 = _double(x, wi, bi, wh, bh, h0, c0)
    y, _, _, pre = _double(*lstm_layer(x, wi, bi, wh, bh, h0, c0, reverse=reverse))
    steps = list(_steps(len(x), reverse))
    cells, hiddens = [c0], [h0]  # before each step
    for t in steps:
        hiddens.append(y[t])
        cells.append(lstm_cell(pre[t], cells[-1])[1])  # type: ignore[arg-type]
    dy, dh, dc = _or_zeros(dy, y), _or_zeros(dh_last, h0), _or_zeros(dc_last, c0)
    dgates, dwh = np.zeros(pre.shape), np.zeros(wh.shape)
    for number in range(len(steps) - 1, -1, -1):
        t = steps[number]
        dgates[t], dc = lstm_cell_grad(dh + dy[t], dc, pre[t], cells[number])  # type: ignore[assignment]
        dwh += dgates[t].T @ hiddens[number]
        dh = dgates[t] @ wh
    db = dgates.sum((0, 1))
    return dgates @ wi, np.einsum("tbg,tbi->gi", dgates, x), db, dwh, db, dh, dc


# Attention ----------------------------------------------------------------------------------------------------


def _normalised(x: Array, eps: float) -> tuple[Array, Array]:
    """x with mean 0 and variance 1 over its last axis, and what it was multiplied by."""
    scale = 1 / np.sqrt(x.var(-1, keepdims=True) + eps)
    return (x - x.mean(-1, keepdims=True)) * scale, scale


def _normalised_grad(dy: Array, y: Array, scale: Array) -> Array:
    return np.asarray(scale * (dy - dy.mean(-1, keepdims=True) - y * (dy * y).mean(-1, keepdims=True)))


def mlp_score(
    keys: Array, query: Array, v: Array, gamma: Maybe = None, beta: Maybe = None, *, eps: float = 1e-5
) -> Arrays:
    """Scores of additive attention (Bahdanau et al. 2015), after a layer norm (Ba et al. 2016) where gamma is there.

    keys [B,T,H], query [B,H], v, gamma and beta [H]; score [B,T] = v . tanh(norm(keys + query)).
    """
    keys, query, v, gamma, beta = _double(keys, query, v, gamma, beta)
    total = keys + query[:, None]
    if gamma is not None and total.size:
        total = _normalised(total, eps)[0] * gamma + beta
    return (np.tanh(total) @ v,)


def mlp_score_grad(
    dscore: Maybe, keys: Array, query: Array, v: Array, gamma: Maybe = None, beta: Maybe = None, score: Maybe = None,
    *, eps: float = 1e-5,
) -> Arrays:  # fmt: skip
    """The gradients of the five inputs; those of gamma and beta are None where these are absent."""
    keys, query, v, gamma, beta = _double(keys, query, v, gamma, beta)
    dscore = _or_zeros(dscore, keys[..., 0] if keys.shape[-1] else np.zeros(keys.shape[:2]))
    total, dgamma, dbeta = keys + query[:, None], None, None
    normed = gamma is not None and total.size
    if normed:
        norm, scale = _normalised(total, eps)
        total = norm * gamma + beta
    t = np.tanh(total)
    dtotal = dscore[..., None] * v * (1 - t**2)
    if gamma is not None:
        dgamma, dbeta = np.zeros(gamma.shape), dtotal.sum((0, 1))
    if normed:
        dgamma = (dtotal * norm).sum((0, 1))
        dtotal = _normalised_grad(dtotal * gamma, norm, scale)
    return dtotal, dtotal.sum(1), np.einsum("bt,bth->h", dscore, t), dgamma, dbeta


def _scores(q: Array, k: Array, lengths: Maybe, bias: Maybe, scale: float) -> Array:
    """Scores [N,Tq,Tk], -inf for the keys beyond the lengths; padding does not count, whatever it holds."""
    inside = np.arange(k.shape[1]) < _counts(lengths, len(k), k.shape[1])[:, None]
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
    w, values = _double(w, values)
    return (np.einsum("bt,bth->bh", w, values),)


def weighted_sum_grad(dout: Maybe, w: Array, values: Array, out: Maybe = None) -> Arrays:
    """The gradients of w and values."""
    w, values = _double(w, values)
    dout = _or_zeros(dout, values.sum(axis=1))
    return np.einsum("bh,bth->bt", dout, values), np.einsum("bt,bh->bth", w, dout)


def attention(
    q: Array, k: Array, v: Array, lengths: Maybe = None, bias: Maybe = None, *, scale: float = 1.0
) -> Arrays:
    """Scaled dot-product attention (Vaswani et al. 2017), without its [Tq,Tk] maps in memory (Dao et al. 2022).

    q [N,Tq,D], k [N,Tk,D], v [N,Tk,Dv], lengths [N] (keys that count), bias [Tq,Tk]. Returns out [N,Tq,Dv] and the
    logarithms of the softmax's denominators, lse [N,Tq].
    """
    q, k, v, bias = _double(q, k, v, bias)
    weights, lse = _softmax(_scores(q, k, lengths, bias, scale))
    inside = np.arange(v.shape[1]) < _counts(lengths, len(v), v.shape[1])[:, None]
    return np.einsum("nqk,nkd->nqd", weights, np.where(inside[..., None], v, 0.0)), lse


def attention_grad(
    dout: Maybe, dlse: Maybe, q: Array, k: Array, v: Array, lengths: Maybe = None, bias: Maybe = None,
    out: Maybe = None, lse: Maybe = None, *, scale: float = 1.0,
) -> Arrays:  # fmt: skip
    """The gradients of q, k and v, and zeros for lengths and bias; ``dlse`` is not read."""
    q, k, v, bias = _double(q, k, v, bias)
    inside = (np.arange(k.shape[1]) < _counts(lengths, len(k), k.shape[1])[:, None])[..., None]
    k, v = np.where(inside, k, 0.0), np.where(inside, v, 0.0)
    weights, _ = _softmax(_scores(q, k, lengths, bias, scale))
    dout = _or_zeros(dout, np.zeros((*q.shape[:2], v.shape[2])))
    dweights = np.einsum("nqd,nkd->nqk", dout, v)
    dscores = scale * weights * (dweights - (weights * dweights).sum(-1, keepdims=True))
    return (
        np.einsum("nqk,nkd->nqd", dscores, k),
        np.einsum("nqk,nqd->nkd", dscores, q),
        np.einsum("nqk,nqd->nkd", weights, dout),
        None if lengths is None else np.zeros(len(k)),
        None if bias is None else np.zeros(bias.shape),
    )


# Rows and elements --------------------------------------------------------------------------------------------


def layer_norm(x: Array, gamma: Array, beta: Array, *, eps: float = 1e-5) -> Arrays:
    """The layer norm over the last axis of x [N,H] (Ba et al. 2016), with the biased variance."""
    x, gamma, beta = _double(x, gamma, beta)
    return (_normalised(x, eps)[0] * gamma + beta if x.size else x,)


def layer_norm_grad(
    dy: Maybe, x: Array, gamma: Array, beta: Maybe = None, y: Maybe = None, *, eps: float = 1e-5
) -> Arrays:
    """The gradients of x, gamma and beta."""
    x, gamma = _double(x, gamma)
    dy = _or_zeros(dy, x)
    if not x.size:
        return x, np.zeros(gamma.shape), np.zeros(gamma.shape)
    norm, scale = _normalised(x, eps)
    return _normalised_grad(dy * gamma, norm, scale), (dy * norm).sum(0), dy.sum(0)


ACTIVATIONS = ("relu", "sigmoid", "tanh", "softrelu", "none")


def bias_act(x: Array, b: Array, *, act: float) -> Arrays:
    """act(x + b) for x [N,H] and b [H]; ``act`` is a position in `ACTIVATIONS`."""
    x, b = _double(x, b)
    total = x + b
    functions = (
        lambda: np.where(total <= 0, 0.0, total),  # a NaN stays one
        lambda: sigmoid(total),
        lambda: np.tanh(total),
        lambda: np.logaddexp(0.0, total),
        lambda: total,
    )
    return (functions[int(act)](),)


def bias_act_grad(dy: Maybe, x: Maybe, b: Maybe, y: Array, *, act: float) -> Arrays:
    """The gradients of x and b, from the output alone."""
    (y,) = _double(y)
    slopes = (
        lambda: np.where(y > 0, 1.0, 0.0),
        lambda: y * (1 - y),
        lambda: 1 - y**2,
        lambda: -np.expm1(-y),
        lambda: np.ones(y.shape),
    )
    dx = _or_zeros(dy, y) * slopes[int(act)]()
    return dx, dx.sum(0)


def sequence_reverse(x: Array, lengths: Maybe = None) -> Arrays:
    """x [T,B,R] with the first lengths[b] steps of each sequence turned round."""
    x = np.asarray(x)
    steps, counts = np.arange(x.shape[0])[:, None], _counts(lengths, x.shape[1], x.shape[0])
    source = np.where(steps < counts, counts - 1 - steps, steps)
    return (x[source, np.arange(x.shape[1])],)


def sequence_reverse_grad(dy: Maybe, x: Maybe, lengths: Maybe = None, y: Maybe = None) -> Arrays:
    """The gradient of x, and zeros for lengths."""
    shaped = [array for array in (dy, y, x) if array is not None]
    dx = sequence_reverse(_or_zeros(dy, shaped[0]), lengths)[0]
    return dx, None if lengths is None else np.zeros(len(lengths))


def philox(seed: int, offset: int, count: int) -> NDArray[np.uint32]:
    """The first ``count`` words of Philox4x32-10 (Salmon et al., SC 2011), as the kernels use it.

    Word i is word i % 4 of the block with the counter (low, high, 0, 0) of offset + i // 4 under the key (low, high) of
    seed.
    """
    low = np.uint64(0xFFFFFFFF)
    blocks = np.uint64(offset) + np.arange((count + 3) // 4, dtype=np.uint64)
    c0, c1, c2, c3 = blocks & low, blocks >> np.uint64(32), np.zeros_like(blocks), np.zeros_like(blocks)
    k0, k1 = np.uint64(seed) & low, np.uint64(seed) >> np.uint64(32)
    for _ in range(10):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = (second >> np.uint64(32)) ^ c1 ^ k0, (first >> np.uint64(32)) ^ c3 ^ k1
        c1, c3 = second & low, first & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.asarray(np.stack((c0, c1, c2, c3), axis=-1).reshape(-1)[:count], np.uint32)


def _unpacked(bits: Array, count: int) -> Array:
    return np.unpackbits(bits, count=count, bitorder="little").astype(np.float64)


def dropout(x: Array, *, keep: float, seed: int = 0, offset: int = 0) -> Arrays:
    """Inverted dropout (Srivastava et al. 2014) of x [n], and the bits of what was kept.

    Element i is kept where the upper 24 bits of word i of `philox`, as a fraction of 1, are below ``keep`` in float32.
    What is dropped is multiplied by zero: an infinity becomes a NaN, as in MXNet.
    """
    (x,) = _double(x)
    kept = (philox(int(seed), int(offset), x.size) >> np.uint32(8)) * 2.0**-24 < np.float64(np.float32(keep))
    return x * np.where(kept, 1 / keep, 0.0), np.packbits(kept, bitorder="little")


def dropout_grad(
    dy: Maybe, dbits: Maybe, x: Maybe, y: Maybe, bits: Array, *, keep: float, seed: int = 0, offset: int = 0
) -> Arrays:
    """The gradient of x."""
    shaped = [array for array in (dy, x, y) if array is not None]
    dy = _or_zeros(dy, shaped[0])
    return (dy * (_unpacked(bits, dy.size) / keep),)


def relu(x: Array) -> Arrays:
    """The positive part of x [n], and the bits of where it is positive; a NaN stays a NaN, with the bit 0."""
    (x,) = _double(x)
    return np.where(x <= 0, 0.0, x), np.packbits(x > 0, bitorder="little")


def relu_grad(dy: Maybe, dbits: Maybe, x: Maybe, y: Maybe, bits: Array) -> Arrays:
    """The gradient of x."""
    shaped = [array for array in (dy, x, y) if array is not None]
    dy = _or_zeros(dy, shaped[0])
    return (dy * _unpacked(bits, dy.size),)


def pack_mask(mask: Array) -> Arrays:
    """The bits of what is not 0 in a mask [n] of 0 and one other value, and that value: the first, or 0 without any.

    Gist keeps masks of ReLUs so (Jain et al., ISCA 2018).
    """
    (mask,) = _double(mask)
    kept = mask != 0
    return np.packbits(kept, bitorder="little"), mask[kept][:1] if kept.any() else np.zeros(1)


def pack_mask_grad(dbits: Maybe, dscale: Maybe, mask: Array, bits: Maybe = None, scale: Maybe = None) -> Arrays:
    """No gradient goes through a mask."""
    return (np.zeros(mask.shape),)


def apply_mask(x: Array, bits: Array, scale: Array) -> Arrays:
    """x [n] times scale [1] where the bit is 1, else times zero: an infinity becomes a NaN, as in MXNet's Dropout."""
    x, scale = _double(x, scale)
    return (x * np.where(_unpacked(bits, x.size), scale[0], 0.0),)


def apply_mask_grad(dy: Maybe, x: Maybe, bits: Array, scale: Array, y: Maybe = None) -> Arrays:
    """The gradient of x, and zeros for the mask."""
    shaped = [array for array in (dy, x, y) if array is not None]
    return (*apply_mask(_or_zeros(dy, shaped[0]), bits, scale), np.zeros_like(bits), np.zeros(1))
