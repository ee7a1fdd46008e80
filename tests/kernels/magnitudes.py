"""Gradients at large inputs, against float64 and next to those of MXNet's own operators: statistics are rounded, too.

Those of attention are in `large_scores`.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import mxnet as mx
import numpy as np

from tests.kernels.cases import (
    Case,
    Runner,
    draw,
    error,
    expected_backward,
    expected_forward,
    run_backward,
    run_forward,
)

EPS = {"eps": 1e-5}
PLAIN_LOSS = {"use_ignore": 0, "normalization": 0, "smooth_alpha": 0.0}


def _score(keys: Any, query: Any, v: Any, gamma: Any = None, beta: Any = None) -> list[Any]:
    total = mx.nd.broadcast_add(keys, query.expand_dims(1))
    if gamma is not None:
        total = mx.nd.LayerNorm(total, gamma, beta, **EPS)
    return [mx.nd.dot(mx.nd.tanh(total), v)]


def _norm_cell(pre: Any, c: Any, gamma: Any, beta: Any) -> list[Any]:
    i, f, g, o = mx.nd.split(pre, num_outputs=4, axis=1)
    following = mx.nd.sigmoid(f) * c + mx.nd.sigmoid(i) * mx.nd.tanh(g)
    return [mx.nd.sigmoid(o) * mx.nd.tanh(mx.nd.LayerNorm(following, gamma, beta, **EPS)), following]


def _loss(x: Any, w: Any, b: Any, label: Any) -> list[Any]:
    scores = mx.nd.FullyConnected(x, w, b, num_hidden=len(w))
    return [mx.nd.SoftmaxOutput(scores, label, grad_scale=2.0)]


class Subject(NamedTuple):
    """A kernel, its sizes, parameters, the inputs that become large, and the same made of MXNet's operators."""

    kernel: str
    dims: dict[str, int]
    params: dict[str, float]
    large: tuple[int, ...]
    stock: Callable[..., list[Any]]
    absent: bool = False


SIZES, OFFSETS = (1.0, 1e3, 1e5), (0.0, 1e3, 1e5)
SUBJECTS = {
    "layer norm": Subject("layer_norm", {"N": 32, "H": 256}, {}, (0,), lambda *x: [mx.nd.LayerNorm(*x, **EPS)]),
    "scores": Subject("mlp_score", {"B": 4, "T": 10, "H": 256}, {}, (0,), _score, absent=True),
    "normed scores": Subject("mlp_score", {"B": 4, "T": 10, "H": 256}, {}, (0, 1), _score),
    "normed cell": Subject("lstm_norm_cell", {"B": 32, "H": 256}, {}, (1,), _norm_cell),
    "softmax output": Subject("softmax_output", {"N": 32, "I": 64, "V": 1200}, PLAIN_LOSS, (0,), _loss),
}


def _case(key: Subject, size: float, offset: float) -> Case:
    case = draw(key.kernel, key.dims, seed=1, absent=key.absent, **key.params)
    for number in key.large:
        case.inputs[number] = (case.inputs[number] * size + offset).astype(np.float32)
    return case


def _stock_gradients(key: Subject, case: Case) -> list[Any]:
    inputs = [mx.nd.array(array) for array in case.inputs if array is not None]
    for array in inputs:
        array.attach_grad()
    with mx.autograd.record():
        outputs = key.stock(*inputs)
    mx.autograd.backward(outputs, [mx.nd.array(head) for head in case.heads])
    return [array.grad.asnumpy() for array in inputs]


def check_gradients(key: Subject, call: Runner, size: float, offset: float) -> None:
    """Fails where a gradient is off by more than four times what MXNet's is, and 1e-6 of its largest element."""
    case = _case(key, size, offset)
    gradients = run_backward(case, run_forward(case, call), call)
    exact = expected_backward(case, expected_forward(case))
    for number, stock in enumerate(_stock_gradients(key, case)):
        if case.spec.inputs[number].gradient:
            allowed = max(4 * error(stock, exact[number]), 1e-6)
            found = error(gradients[number], exact[number])
            assert found <= allowed, f"input {number}: error {found:.2e}, {allowed:.2e} is allowed"
