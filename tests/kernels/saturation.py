"""Gradients of gates that are nearly 0 or 1, element by element: 1 - gate, taken from a rounded gate, is all rounding.

Heads and states have signs with which no sums cancel, so that every element has a relative error of a few roundings;
sums that stand before a gate are exact, since all that is added is a multiple of 1/64.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from tests.kernels.cases import Case, Runner, draw, expected_backward, run_backward, run_forward

RELATIVE = 1e-5  # arguments of up to 100 are rounded by up to 4e-6, and exponentials change by as much of themselves
LEAST = 2.0**-118  # below it float32 runs out of exponents
NOTHING = 2.0**-160  # and below this only 0 will do, of which large weights make nothing
LARGEST = 100.0
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan)
WIDTH = 400
NORM = {"eps": 1e-5}


def _drawn(rng: Any, shape: Any, largest: float = LARGEST) -> Any:
    """Numbers of all sizes and both signs: multiples of 1/64."""
    sizes = largest * rng.random(shape) ** 2
    return (np.round(64 * sizes * rng.choice([-1, 1], shape)) / 64).astype(np.float32)


def _positive(rng: Any, shape: Any) -> Any:
    return (0.5 + rng.random(shape)).astype(np.float32)


def _with_special(array: Any, first: int) -> Any:
    """The same with one of the special numbers in each of the columns from ``first`` on."""
    array[..., first : first + len(SPECIAL)] = SPECIAL
    return array


def _lstm_cell(rng: Any) -> Case:
    """The cell has the sign of what is added to it."""
    case = draw("lstm_cell", {"B": 3, "H": WIDTH})
    pre = _drawn(rng, (3, 4, WIDTH))
    for gate in range(4):
        _with_special(pre[:, gate], 5 * gate)
    sign = np.where(np.isnan(pre[:, 2]), 1, np.copysign(1, pre[:, 2]))
    case.inputs = [pre.reshape(3, 4 * WIDTH), (sign * _positive(rng, (3, WIDTH)) * 4).astype(np.float32)]
    case.heads = [_positive(rng, (3, WIDTH)), _positive(rng, (3, WIDTH)) * 0]
    case.heads[1][1:] = 1
    return case


def _lstm_norm_cell(rng: Any) -> Case:
    """Without special numbers, which spread over a row's norm; one gradient goes into each row."""
    case, cell = draw("lstm_norm_cell", {"B": 4, "H": WIDTH}), _lstm_cell(rng)
    pre = _drawn(rng, (4, 4, WIDTH))
    c = np.copysign(4 * _positive(rng, (4, WIDTH)), pre[:, 2]).astype(np.float32)
    case.inputs = [pre.reshape(4, 4 * WIDTH), c, np.full(WIDTH, 0.125, np.float32), _drawn(rng, WIDTH)]
    case.heads = [_positive(rng, (4, WIDTH)), np.zeros_like(c)]
    case.heads[0][2:], case.heads[1][2:] = 0, cell.heads[0][:2]
    return case


def _gru_cell(rng: Any) -> Case:
    """The state has the sign that the new gate has not."""
    case = draw("gru_cell", {"B": 3, "H": WIDTH})
    x, s = _drawn(rng, (3, 3, WIDTH)), _drawn(rng, (3, 3, WIDTH), 1)
    s[:, 2] = np.copysign(s[:, 2], x[:, 2])
    for gate in range(3):
        _with_special(x[:, gate], 5 * gate)
    sign = np.where(np.isnan(x[:, 2]), 1, -np.copysign(1, x[:, 2]))
    state = (sign * _positive(rng, (3, WIDTH))).astype(np.float32)
    case.inputs = [x.reshape(3, 3 * WIDTH), s.reshape(3, 3 * WIDTH), state]
    case.heads = [_positive(rng, (3, WIDTH))]
    return case


def _gru_reset(rng: Any) -> Case:
    case = draw("gru_reset", {"B": 3, "H": WIDTH}, keeps=1)
    pre = _drawn(rng, (3, 2, WIDTH))
    for gate in range(2):
        _with_special(pre[:, gate], 5 * gate)
    case.inputs = [pre.reshape(3, 2 * WIDTH), _positive(rng, (3, WIDTH))]
    case.heads = [_positive(rng, (3, WIDTH)), _positive(rng, (3, WIDTH))]
    return case


def _gru_mix(rng: Any) -> Case:
    """The state has the sign that the candidate has not; weights are nearly 0, too."""
    case = draw("gru_mix", {"B": 3, "H": WIDTH})
    pre = _with_special(_drawn(rng, (3, WIDTH)), 0)
    sign = np.where(np.isnan(pre), 1, -np.copysign(1, pre))
    weights = np.exp2(-30 * rng.random((3, WIDTH))).astype(np.float32)
    case.inputs = [(sign * _positive(rng, (3, WIDTH))).astype(np.float32), weights, pre]
    case.heads = [_positive(rng, (3, WIDTH))]
    return case


def _mlp_score(rng: Any, normed: bool = False) -> Case:
    dims = {"B": 2, "T": 3, "H": WIDTH}
    case = draw("mlp_score", dims, absent=not normed)
    case.inputs[:3] = [_drawn(rng, (2, 3, WIDTH), 1), _drawn(rng, (2, WIDTH)), _positive(rng, WIDTH)]
    if normed:
        case.inputs[3:] = [np.full(WIDTH, 0.125, np.float32), _drawn(rng, WIDTH)]
    else:
        _with_special(case.inputs[1], 0)
    case.heads = [_positive(rng, (2, 3))]
    return case


def _lstm_layer(rng: Any) -> Case:
    """One step of one row whose gates are the bias, so that the gradient of the bias is theirs."""
    case = draw("lstm_layer", {"T": 1, "B": 1, "I": 1, "H": WIDTH})
    pre = _drawn(rng, (4, WIDTH))
    for gate in range(4):
        _with_special(pre[gate], 5 * gate)
    case.inputs = [np.zeros_like(array) for array in case.inputs]
    sign = np.where(np.isnan(pre[2]), 1, np.copysign(1, pre[2]))
    case.inputs[2], case.inputs[6] = pre.reshape(-1), (sign * 4 * _positive(rng, (1, WIDTH))).astype(np.float32)
    case.heads = [_positive(rng, (1, 1, WIDTH)), _positive(rng, (1, WIDTH)), np.zeros((1, WIDTH), np.float32), None]
    return case


def _gru_layer(rng: Any) -> Case:
    """One step of one row whose gates are the biases; the state, which a weight of 0 keeps from them, as of a cell."""
    case, cell = draw("gru_layer", {"T": 1, "B": 1, "I": 1, "H": WIDTH}), _gru_cell(rng)
    case.inputs = [np.zeros_like(array) for array in case.inputs]
    case.inputs[2], case.inputs[4], case.inputs[5] = cell.inputs[0][0], cell.inputs[1][0], cell.inputs[2][:1]
    case.heads = [_positive(rng, (1, 1, WIDTH)), _positive(rng, (1, WIDTH)), None]
    return case


# the case, and those of its gradients whose elements are not sums of terms that cancel
SUBJECTS: dict[str, tuple[Any, Sequence[int]]] = {
    "lstm_cell": (_lstm_cell, (0, 1)),
    "lstm_norm_cell": (_lstm_norm_cell, (0, 1, 3)),
    "gru_cell": (_gru_cell, (0, 1, 2)),
    "gru_reset": (_gru_reset, (0, 1)),
    "gru_mix": (_gru_mix, (0, 1, 2)),
    "mlp_score": (_mlp_score, (0, 1)),
    "normed mlp_score": (lambda rng: _mlp_score(rng, normed=True), (4,)),
    "lstm_layer": (_lstm_layer, (2, 6)),
    "gru_layer": (_gru_layer, (2, 4)),
}


def off(got: Any, expected: Any) -> float:
    """The largest relative error of an element; infinite where one alone is a NaN, or nothing."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if not np.array_equal(np.isnan(got), np.isnan(expected)):
        return float("inf")
    known = ~np.isnan(expected)
    got, expected = got[known], expected[known]
    if got[np.abs(expected) < NOTHING].any():
        return float("inf")
    return float((np.maximum(np.abs(got - expected) - LEAST, 0) / np.maximum(np.abs(expected), LEAST)).max())


def largest_error(name: str, call: Runner, seed: int = 0) -> float:
    """How far the gradients of a kernel are off where its gates are saturated."""
    make, judged = SUBJECTS[name]
    case = make(np.random.default_rng(seed))
    with np.errstate(invalid="ignore"):
        outputs = run_forward(case, call)
        expected = expected_backward(case, outputs)
    gradients = run_backward(case, outputs, call)
    errors = [off(_judged(name, gradients[n], n), _judged(name, expected[n], n)) for n in judged]
    return max(errors)


def _judged(name: str, gradient: Any, number: int) -> Any:
    """Without what the norm of a cell hands back: sums that cancel."""
    if name != "lstm_norm_cell" or number == 3:
        return gradient
    if number == 1:
        return gradient[2:]
    gates = np.array(gradient).reshape(4, 4, WIDTH)
    return np.concatenate([gates[:2, 3].ravel(), gates[2:, :3].ravel()])


def check_saturated(name: str, call: Runner) -> None:
    """Fails where an element of a gradient is further off than rounding makes it."""
    for seed in range(3):
        found = largest_error(name, call, seed)
        assert found <= RELATIVE, f"{name}: an element is off by {found:.1e} of itself"
