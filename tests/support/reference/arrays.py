"""Array types and helpers that the reference kernels share: float64 arrays, and arrays that may be absent."""

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


def sigmoid_slope(x: Array) -> Array:
    """The derivative of `sigmoid` at x, accurate where 1 - sigmoid(x) would be rounded to nothing."""
    return np.asarray(sigmoid(x) * sigmoid(-x))


def tanh_slope(x: Array) -> Array:
    """The derivative of tanh at x, accurate where 1 - tanh(x)^2 would be rounded to nothing."""
    return 4 * sigmoid_slope(2 * x)


def double(*arrays: Maybe) -> list[Any]:
    return [None if array is None else np.asarray(array, np.float64) for array in arrays]


def or_zeros(gradient: Maybe, like: Array) -> Array:
    return np.zeros(like.shape) if gradient is None else np.asarray(gradient, np.float64)


def counts_of(lengths: Maybe, batch: int, most: int) -> NDArray[np.int64]:
    """Lengths as whole numbers from 0 to ``most``; all where they are absent."""
    if lengths is None:
        return np.full(batch, most, np.int64)
    return np.clip(np.trunc(np.nan_to_num(np.asarray(lengths, np.float64))), 0, most).astype(np.int64)


def unpacked(bits: Array, count: int) -> Array:
    """The first ``count`` bits as numbers, 0 or 1."""
    return np.unpackbits(bits, count=count, bitorder="little").astype(np.float64)


def normalised(x: Array, eps: float) -> tuple[Array, Array]:
    """x with mean 0 and variance 1 over its last axis, and the factor."""
    if not x.size:
        return x, np.ones((*x.shape[:-1], 1))
    scale = 1 / np.sqrt(x.var(-1, keepdims=True) + eps)
    return (x - x.mean(-1, keepdims=True)) * scale, scale


def normalised_grad(dy: Array, y: Array, scale: Array) -> Array:
    if not y.size:
        return y
    return np.asarray(scale * (dy - dy.mean(-1, keepdims=True) - y * (dy * y).mean(-1, keepdims=True)))
