"""Masks of one bit an element, and the random numbers after them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from echo.kernels.reference.arrays import Array, Arrays, Maybe, double, or_zeros


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


def unpacked(bits: Array, count: int) -> Array:
    """The first ``count`` bits as numbers, 0 or 1."""
    return np.unpackbits(bits, count=count, bitorder="little").astype(np.float64)


def dropout(x: Array, *, keep: float, seed: int = 0, offset: int = 0) -> Arrays:
    """Inverted dropout (Srivastava et al. 2014) of x [n], and the bits of what was kept.

    Element i is kept where the upper 24 bits of word i of `philox`, as a fraction of 1, are below ``keep`` in float32.
    What is dropped is multiplied by zero: an infinity becomes a NaN, as in MXNet.
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
    """The bits of what is not 0 in a mask [n] of 0 and one other value, and that value: the first, or 0 without any.

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
