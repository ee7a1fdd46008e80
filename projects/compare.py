"""Holds the arrays of one run against those of another: to the bit, or with a tolerance."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

import numpy as np

GRADIENT_TOLERANCE = 2e-5  # of the largest element, after one step
LOSS_TOLERANCE = 1e-3  # of the largest element, over the few steps
# A gradient that is zero but for rounding (a bias in front of BatchNorm, the bias of attention's keys) has no largest
# element to speak of: it is measured by this part of the model's largest gradient.
FLOOR = 1e-4
# A bias adds up the very terms whose products with the inputs are the gradient of its weight: where they cancel, as
# those of attention's keys do, rounding leaves a part of the terms, whatever the model's largest gradient is.
FLOOR_OF_BIAS = 0.1  # of the largest element of the weight's gradient

Arrays = Mapping[str, Any]


class Worst(NamedTuple):
    """The array with the largest error, and the error."""

    error: float
    name: str


def different(stock: Arrays, other: Arrays) -> list[str]:
    """The names under which not every bit is the same, those that only one run has included."""
    return sorted(name for name in stock.keys() | other.keys() if not _same(stock.get(name), other.get(name)))


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(one.tobytes() == other.tobytes())


def worst(stock: Arrays, other: Arrays, prefix: str) -> Worst:
    """The largest difference among the arrays of that prefix, as a part of the largest element of the same array."""
    names = [name for name in stock if name.startswith(prefix)]
    sizes = {name: _largest(stock[name]) for name in names}
    floor = FLOOR * max(sizes.values(), default=0.0)
    floors = {name: max(floor, FLOOR_OF_BIAS * sizes.get(_weight_of(name), 0.0)) for name in names}
    found = [Worst(_error(stock[name], other.get(name), max(sizes[name], floors[name])), name) for name in names]
    return max(found, default=Worst(0.0, ""))


def _weight_of(name: str) -> str:
    """The weight that goes with a bias, by the names that MXNet gives them; empty for any other array."""
    return name[: -len("bias")] + "weight" if name.endswith("bias") else ""


def _largest(array: Any) -> float:
    finite = np.abs(array[np.isfinite(array)], dtype=np.float64) if array.size else array
    return float(finite.max()) if finite.size else 0.0


def _error(one: Any, other: Any, size: float) -> float:
    if other is None or one.shape != other.shape:
        return float("inf")
    if _same(one, other):
        return 0.0
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    return _largest(one.astype(np.float64) - other.astype(np.float64)) / size if size else float("inf")
