"""Rows and elements: layers of an output, layer norms, biases with activations, sequences turned round."""

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
    sigmoid,
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
