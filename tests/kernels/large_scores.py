"""Gradients of attention where scores are large, and the logarithms of their denominators are rounded by much."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kernels.cases import TOLERANCE, Case, Runner, draw, error, expected_backward, run_backward, run_forward

# The largest element of q, which makes scores of up to 12, 1,200, 117,000, 1e9 and 1e19, and how far float32 may be
# from float64. At 1,200 some keys come close to a query's own, so that what the scores lose in rounding shows.
# From 1e9 on the last bit of a score is worth more than any exponential: weights are 0 or 1.
SIZES = {3.0: 4.5e-6, 30.0: 2.5e-5, 300.0: 1e-6, 3e4: 1e-6, 3e9: 1e-6}
VARIANTS = ("plain", "lengths", "mask", "ruled out", "dropout", "short", "few left", "deep")
_STEPS = {"short": 40, "few left": 131, "deep": 131}  # 3 queries are left after a whole block of 128


def large_scores(size: float, dtype: str = "float32", variant: str = "plain") -> Case:
    """Queries, keys and values are one array: a query's own key has nearly all the weight, where it counts.

    In the variant "short" all keys fit into one block of the kernels, in "few left" and "deep" a few queries are left
    for their last block.
    """
    steps, depth = _STEPS.get(variant, 70), 80 if variant == "deep" else 16
    case = draw("attention", {"N": 2, "Tq": steps, "Tk": steps, "D": depth, "Dv": depth}, dtype, seed=10)
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
    """Keys after the query, and all of query 5, by a number in which its scores are lost."""
    mask = np.triu(np.full((70, 70), -np.inf), 1).astype(dtype)
    mask[5] = np.finfo(dtype).min / 4
    return mask[None, None]


def check_large_scores(call: Runner, size: float, dtype: str, variant: str) -> None:
    """Fails where the gradient of the one array is too far from float64; some are beyond float16."""
    if size > np.finfo(dtype).max / 10:
        return
    case = large_scores(size, dtype, variant)
    outputs = run_forward(case, call)
    found = sum(array.astype(np.float64) for array in run_backward(case, outputs, call)[:3])
    off = error(found, sum(expected_backward(case, outputs)[:3]))
    allowed = SIZES[size] if dtype == "float32" else TOLERANCE[dtype]
    assert np.abs(outputs[1][np.isfinite(outputs[1])]).max() > size
    assert off <= allowed, f"scores of size {size}, {variant}, {dtype}: error {off:.2e}"


def check_cancelled_scores(call: Runner, dtype: str) -> None:
    """Fails where weights exceed 1: scores are what is left of terms that are larger by far, and rounded with those."""
    case = draw("attention", {"N": 2, "Tq": 131, "Tk": 131, "D": 64, "Dv": 4}, dtype, seed=11)
    case.inputs[3:] = [None] * 4
    large = 1e4 if dtype == "float16" else 1e8
    for i, signs in ((0, (1, 1)), (1, (1, -1))):
        case.inputs[i][:, :, 0], case.inputs[i][:, :, 40] = large * signs[0], large * signs[1]
    dq, dk, dv, *_ = run_backward(case, run_forward(case, call), call)
    assert np.isfinite(dq).all()
    assert np.isfinite(dk).all()
    most = np.abs(case.heads[0].astype(np.float64)).sum(axis=1, keepdims=True)
    assert (np.abs(dv) <= 1.01 * most).all()
