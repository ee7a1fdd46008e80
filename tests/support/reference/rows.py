"""Rows and elements: layers of an output, layer norms, activations, reversed sequences, masks of one bit an element."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.support.reference.arrays import (
    Array,
    Arrays,
    Maybe,
    counts_of,
    double,
    normalised,
    normalised_grad,
    or_zeros,
    sigmoid,
    unpacked,
)


def softmax_output(x: Array, w: Array, b: Maybe, label: Array, **_: float) -> Arrays:
    """A fully connected layer and a softmax. x [N,I], w [V,I], b [V], label [N]; the probabilities [N,V]."""
    x, w = double(x, w)
    scores = x @ w.T + (0.0 if b is None else np.asarray(b, np.float64))
    scores = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    return (scores / scores.sum(axis=1, keepdims=True),)


def softmax_output_grad(
    dprob: Maybe, x: Array, w: Array, b: Maybe, label: Array, prob: Array, *, grad_scale: float = 1.0,
    use_ignore: float = 0.0, ignore_label: float = -1.0, normalization: float = 0.0, smooth_alpha: float = 0.0,
) -> Arrays:  # fmt: skip
    """The gradients of x, w and b that MXNet's SoftmaxOutput defines, which knows its loss; none of the label."""
    x, w, label, prob = double(x, w, label, prob)
    count, words = prob.shape
    target = np.full(prob.shape, smooth_alpha / (words - 1) if words > 1 else 0.0)
    in_range = (label >= 0) & (label < words)
    target[np.flatnonzero(in_range), label[in_range].astype(np.int64)] = 1 - smooth_alpha
    scores = prob - target
    if use_ignore:
        scores[label.astype(np.int64) == int(ignore_label)] = 0
    valid = max(1, np.count_nonzero(label.astype(np.int64) != int(ignore_label)))
    scores *= grad_scale / {0: 1, 1: max(1, count), 2: valid}[int(normalization)]
    return scores @ w, scores.T @ x, None if b is None else scores.sum(axis=0), np.zeros(label.shape)


def _classes(label: Array, classes: int) -> Array:
    """The class of each label as MXNet's ``pick`` has it: towards 0, and into 0..classes-1."""
    whole = np.asarray(label, np.float64)
    return np.clip(np.where(whole < 2**31, whole, 0), 0, classes - 1).astype(np.int64)


def cross_entropy(x: Array, label: Array) -> Arrays:
    """log softmax(x) for x [N,V] where a loss reads it: at the label [N], and its sum over all classes, [N] each.

    After them the largest score of each row, and the logarithm of the sum of exponentials below it.
    """
    (x,) = double(x)
    if not x.shape[1]:
        return (np.zeros(len(x)),) * 4
    most = x.max(1)
    logsum = np.log(np.exp(x - most[:, None]).sum(1))
    logarithms = x - (most + logsum)[:, None]
    return logarithms[np.arange(len(x)), _classes(label, x.shape[1])], logarithms.sum(1), most, logsum


def cross_entropy_grad(
    dlogp: Maybe, dsum: Maybe, dmost: Maybe, dlogsum: Maybe, x: Array, label: Array, logp: Maybe, sum_: Maybe,
    most: Array, logsum: Array,
) -> Arrays:  # fmt: skip
    """The gradient of x, and zeros for the label."""
    x, most, logsum = double(x, most, logsum)
    return _of_scores(dlogp, dsum, np.exp(x - (most + logsum)[:, None]), label), np.zeros(np.shape(label))


def _of_scores(dlogp: Maybe, dsum: Maybe, prob: Array, label: Array) -> Array:
    """The gradient of scores [N,V] from their probabilities."""
    count, classes = len(prob), prob.shape[1]
    if not classes:
        return prob
    hit = np.zeros(prob.shape)
    hit[np.arange(count), _classes(label, classes)] = 1
    of_logp, of_sum = (or_zeros(gradient, prob[:, 0])[:, None] for gradient in (dlogp, dsum))
    return np.asarray(of_logp * (hit - prob) + of_sum * (1 - classes * prob))


def linear_cross_entropy(x: Array, w: Array, b: Maybe, label: Array) -> Arrays:
    """`cross_entropy` of a fully connected layer. x [N,I], w [V,I], b [V], label [N]; [N], [N], probabilities [N,V]."""
    x, w = double(x, w)
    scores = x @ w.T + (0.0 if b is None else np.asarray(b, np.float64))
    prob = np.exp(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True, initial=-np.inf))
    return (*cross_entropy(scores, label)[:2], prob)


def linear_cross_entropy_grad(
    dlogp: Maybe, dsum: Maybe, dprob: Maybe, x: Array, w: Array, b: Maybe, label: Array, logp: Maybe, sum_: Maybe,
    prob: Array,
) -> Arrays:  # fmt: skip
    """The gradients of x, w and b, and zeros for the label."""
    x, w, prob = double(x, w, prob)
    scores = _of_scores(dlogp, dsum, prob, label)
    return scores @ w, scores.T @ x, None if b is None else scores.sum(axis=0), np.zeros(np.shape(label))


def layer_norm(x: Array, gamma: Array, beta: Array, *, eps: float = 1e-5) -> Arrays:
    """The layer norm over the last axis of x [N,H] (Ba et al. 2016), with the biased variance."""
    x, gamma, beta = double(x, gamma, beta)
    return (normalised(x, eps)[0] * gamma + beta if x.size else x,)


def layer_norm_grad(
    dy: Maybe, x: Array, gamma: Array, beta: Maybe = None, y: Maybe = None, *, eps: float = 1e-5
) -> Arrays:
    """The gradients of x, gamma and beta."""
    x, gamma = double(x, gamma)
    dy = or_zeros(dy, x)
    if not x.size:
        return x, np.zeros(gamma.shape), np.zeros(gamma.shape)
    norm, scale = normalised(x, eps)
    return normalised_grad(dy * gamma, norm, scale), (dy * norm).sum(0), dy.sum(0)


ACTIVATIONS = ("relu", "sigmoid", "tanh", "softrelu", "none")


def bias_act(x: Array, b: Array, *, act: float) -> Arrays:
    """act(x + b) for x [N,H] and b [H]; ``act`` is a position in `ACTIVATIONS`."""
    x, b = double(x, b)
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
    (y,) = double(y)
    slopes = (
        lambda: np.where(y > 0, 1.0, 0.0),
        lambda: y * (1 - y),
        lambda: 1 - y**2,
        lambda: -np.expm1(-y),
        lambda: np.ones(y.shape),
    )
    dx = or_zeros(dy, y) * slopes[int(act)]()
    return dx, dx.sum(0)


def sequence_reverse(x: Array, lengths: Maybe = None) -> Arrays:
    """x [T,B,R] with the first lengths[b] steps of each sequence turned round."""
    x = np.asarray(x)
    steps, counts = np.arange(x.shape[0])[:, None], counts_of(lengths, x.shape[1], x.shape[0])
    source = np.where(steps < counts, counts - 1 - steps, steps)
    return (x[source, np.arange(x.shape[1])],)


def sequence_reverse_grad(dy: Maybe, x: Maybe, lengths: Maybe = None, y: Maybe = None) -> Arrays:
    """The gradient of x, and zeros for lengths."""
    shaped = [array for array in (dy, y, x) if array is not None]
    dx = sequence_reverse(or_zeros(dy, shaped[0]), lengths)[0]
    return dx, None if lengths is None else np.zeros(len(lengths))


# Masks of one bit an element, and the random numbers that dropout takes them from.


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


def dropout(x: Array, *, keep: float, seed: int = 0, offset: int = 0) -> Arrays:
    """Inverted dropout (Srivastava et al. 2014) of x [n], and the bits of kept elements.

    Element i is kept where the upper 24 bits of word i of `philox`, as a fraction of 1, are below ``keep`` in float32.
    Dropped elements are multiplied by zero: an infinity becomes a NaN, as in MXNet.
    """
    (x,) = double(x)
    kept = (philox(int(seed), int(offset), x.size) >> np.uint32(8)) * 2.0**-24 < np.float64(np.float32(keep))
    return x * np.where(kept, 1 / keep, 0.0), np.packbits(kept, bitorder="little")


def dropout_grad(
    dy: Maybe, dbits: Maybe, x: Maybe, y: Maybe, bits: Array, *, keep: float, seed: int = 0, offset: int = 0
) -> Arrays:
    """The gradient of x."""
    shaped = [array for array in (dy, x, y) if array is not None]
    dy = or_zeros(dy, shaped[0])
    return (dy * (unpacked(bits, dy.size) / keep),)


def relu(x: Array) -> Arrays:
    """The positive part of x [n], and the bits of where it is positive; a NaN stays a NaN, with the bit 0."""
    (x,) = double(x)
    return np.where(x <= 0, 0.0, x), np.packbits(x > 0, bitorder="little")


def relu_grad(dy: Maybe, dbits: Maybe, x: Maybe, y: Maybe, bits: Array) -> Arrays:
    """The gradient of x."""
    shaped = [array for array in (dy, x, y) if array is not None]
    dy = or_zeros(dy, shaped[0])
    return (dy * unpacked(bits, dy.size),)


def pack_mask(mask: Array) -> Arrays:
    """The bits of a mask [n] of 0 and one other value, 1 for the latter, and that value: the first, or 0 without any.

    Gist keeps masks of ReLUs so (Jain et al., ISCA 2018).
    """
    (mask,) = double(mask)
    kept = mask != 0
    return np.packbits(kept, bitorder="little"), mask[kept][:1] if kept.any() else np.zeros(1)


def pack_mask_grad(dbits: Maybe, dscale: Maybe, mask: Array, bits: Maybe = None, scale: Maybe = None) -> Arrays:
    """No gradient goes through a mask."""
    return (np.zeros(mask.shape),)


def apply_mask(x: Array, bits: Array, scale: Array) -> Arrays:
    """x [n] times scale [1] where the bit is 1, else times zero: an infinity becomes a NaN, as in MXNet's Dropout."""
    x, scale = double(x, scale)
    return (x * np.where(unpacked(bits, x.size), scale[0], 0.0),)


def apply_mask_grad(dy: Maybe, x: Maybe, bits: Array, scale: Array, y: Maybe = None) -> Arrays:
    """The gradient of x, and zeros for the mask."""
    shaped = [array for array in (dy, x, y) if array is not None]
    return (*apply_mask(or_zeros(dy, shaped[0]), bits, scale), np.zeros_like(bits), np.zeros(1))
