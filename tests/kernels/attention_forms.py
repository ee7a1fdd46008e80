"""Masks of attention in all the shapes that they have in models, and lengths of each query: for all backends."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.kernels.cases import (
    Case,
    Runner,
    check,
    draw,
    expected_backward,
    expected_forward,
    run_backward,
    run_forward,
)

DIMS = {"N": 6, "Tq": 5, "Tk": 71, "D": 6, "Dv": 3}


class Form(NamedTuple):
    """The mask's shape, how it is applied, and whether each query has lengths of its own, and dropout."""

    mask: tuple[int, ...]
    params: dict[str, float]
    lengths: bool = False
    dropped: bool = False


FORMS = {
    "each batch": Form((2, 1, 1, 71), {}),
    "each query of each batch": Form((2, 1, 5, 71), {}, dropped=True),
    "each head": Form((1, 3, 5, 71), {}),
    "each item": Form((6, 1, 1, 71), {}, lengths=True),
    "each batch and head": Form((2, 3, 1, 71), {}, lengths=True, dropped=True),
    "selected": Form((2, 1, 5, 71), {"masking": 1, "fill": -1e9}, dropped=True),
    "selected and multiplied": Form((2, 1, 5, 71), {"masking": 2, "fill": -1e4}, dropped=True),
    "selected, of small scores": Form((1, 1, 1, 71), {"masking": 1, "fill": 1.5}),
    "selected, by infinity": Form((6, 1, 5, 71), {"masking": 1, "fill": -np.inf}),
    "lengths of queries": Form((), {}, lengths=True),
}


def case_of(name: str, dtype: str = "float32") -> Case:
    """The first query of the first item sees no key, where the mask selects them by a finite number, or by lengths."""
    form = FORMS[name]
    case = draw("attention", DIMS, dtype, seed=14, **form.params)
    rng = np.random.default_rng(15)
    case.inputs[3] = rng.integers(0, 75, 30).astype(np.float32) if form.lengths else None
    if form.lengths:
        case.inputs[3][0] = 0
    case.inputs[4] = None
    if form.mask:
        mask = rng.normal(size=form.mask)
        if form.params.get("masking"):
            mask = np.where(mask > -0.3, np.where(mask > 0.3, 1, 0.5), 0)
            if np.isfinite(form.params["fill"]):
                mask[0, 0, 0] = 0
        case.inputs[4] = mask.astype(dtype)
    if not form.dropped:
        case.inputs[5:] = [None, None]
    return case


def check_form(call: Runner, name: str, dtype: str) -> None:
    """Fails where results or gradients are too far from float64."""
    case = case_of(name, dtype)
    outputs = run_forward(case, call)
    check(outputs, expected_forward(case), dtype, f"attention {name}")
    gradients: list[Any] = run_backward(case, outputs, call)
    check(gradients, expected_backward(case, outputs), dtype, f"attention {name}, backward")
