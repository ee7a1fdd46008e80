"""Gradients of attention where scores are large, and the logarithms of their denominators are rounded by much."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kernels.cases import TOLERANCE, Case, Runner, draw, error, expected_backward, run_backward, run_forward

# The largest element of q, which makes scores of up to 12, 1,200 and 117,000, and how far float32 may be from float64.
# At 1,200 some keys come close to a query's own, so that what the scores themselves lose in rounding shows.
SIZES = {3.0: 4.5e-6, 30.0: 2.5e-5, 300.0: 1e-6}
VARIANTS = ("plain", "lengths", "mask", "ruled out", "dropout", "short")


def large_scores(size: float, dtype: str = "float32", variant: str = "plain") -> Case:
    """Queries, keys and values are one array: a query's own key has nearly all the weight, where it counts.

    In the variant "short" all keys fit into one block of the kernels.
    """
    steps = 40 if variant == "short" else 70
    case = draw("attention", {"N": 2, "Tq": steps, "Tk": steps, "D": 16, "Dv": 16}, dtype, seed=10)
    lengths, mask, x = case.inputs[3], case.inputs[4], case.inputs[0]
    for i in range(3):
        case.inputs[i] = (size * x.astype(np.float64) / np.abs(x).max()).astype(dtype)
    case.inputs[3:] = [None, None, *(case.inputs[5:] if variant == "dropout" else [None, None])]
    if variant == "lengths":
        case.inputs[3] = np.minimum(lengths, 66)
    elif variant == "mask":
        case.inputs[4] = mask
    elif variant == "ruled out":
        case.inputs[4] = _mask(dtype)
        for i in range(3):
            case.inputs[i][:, 5] = 0
    return case


def _mask(dtype: str) -> Any:
    """Keys behind the query, and all of query 5, by a number in which its scores are lost."""
    mask = np.triu(np.full((70, 70), -np.inf), 1).astype(dtype)
    mask[5] = np.finfo(dtype).min / 4
    return mask[None, None]


def check_large_scores(call: Runner, size: float, dtype: str, variant: str) -> None:
    """Fails where the gradient of the one array is too far from float64."""
    case = large_scores(size, dtype, variant)
    outputs = run_forward(case, call)
    found = sum(array.astype(np.float64) for array in run_backward(case, outputs, call)[:3])
    off = error(found, sum(expected_backward(case, outputs)[:3]))
    allowed = SIZES[size] if dtype == "float32" else TOLERANCE[dtype]
    assert np.abs(outputs[1][np.isfinite(outputs[1])]).max() > size
    assert off <= allowed, f"scores of size {size}, {variant}, {dtype}: error {off:.2e}"
