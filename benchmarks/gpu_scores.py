"""Additive attention of all queries and the loss over large vocabularies, against torch eager and torch.compile."""

from __future__ import annotations

import itertools
import math
from typing import Any, Callable, Iterator

from benchmarks.gpu_clock import Clock, Row
from benchmarks.gpu_ours import Function, dtype_of, ours, outputs_of, scaled, tensor_float, timed
from benchmarks.gpu_sizes import Loss, Scores, Sizes
from benchmarks.gpu_torch import forward_of, step_of
from tests.support.kernel_calls import ADD, WRITE

_LOSS = {"grad_scale": 1.0, "use_ignore": 0.0, "ignore_label": -1.0, "normalization": 0.0, "smooth_alpha": 0.0}


def score_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """A training step of GNMT's normalized scores in float16: one call of echo's for each query, as MXNet unrolls."""
    for size in clock.take(sizes.scores):
        inputs, heads = score_arrays(device, size)
        row = {"section": "scores", **size._asdict(), **_ours(device, lambda: score_step(device, inputs, heads))}  # noqa: B023
        yield {**row, **_of_torch(device, "all_scores", {"eps": 1e-5}, inputs, heads)}


def score_arrays(device: Any, size: Scores, dtype: str = "float16") -> tuple[list[Any], Any]:
    """Keys, queries, v, gamma and beta; gradients of the scores [B,Tq,Tk]."""
    batch, queries, keys, hidden = size
    spread = 1 / math.sqrt(hidden)
    vectors = [device.random((hidden,), dtype, spread) for _ in range(3)]
    arrays = [device.random((batch, keys, hidden), dtype), device.random((batch, queries, hidden), dtype), *vectors]
    return arrays, device.random((batch, queries, keys), dtype)


def score_step(device: Any, inputs: list[Any], heads: Any) -> Function:
    """Echo's forward and backward of all queries; it returns scores and gradients of the inputs."""
    keys, queries, *vectors = inputs
    by_query = [queries[:, t].contiguous() for t in range(queries.shape[1])]
    d_queries = [device.torch.empty_like(query) for query in by_query]
    sums = [device.torch.zeros_like(array) for array in (keys, *vectors)]
    calls, scores = [], []
    for t, query in enumerate(by_query):
        arguments = [keys, query, *vectors]
        scores.append(device.empty(tuple(keys.shape[:2]), dtype_of(keys)))
        calls.append(device.prepare("mlp_score", arguments, scores[-1:], [WRITE], [1e-5]))
        gradients = [sums[0], d_queries[t], *sums[1:]]
        given = [heads[:, t].contiguous(), *arguments, scores[-1]]
        calls.append(device.prepare("mlp_score_grad", given, gradients, [ADD, WRITE, ADD, ADD, ADD], [1e-5]))

    def step() -> list[Any]:
        for array in sums:
            array.zero_()
        for call in calls:
            call()
        return [device.torch.stack(scores, 1), sums[0], device.torch.stack(d_queries, 1), *sums[1:]]

    return step


def loss_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """A projection to classes, its softmax and the gradients of the loss."""
    for size, dtype in clock.take(_in_types(sizes), _name):
        inputs = loss_arrays(device, size, dtype)
        row = {"section": "loss", "dtype": dtype, **size._asdict(), **_ours(device, lambda: loss_step(device, inputs))}  # noqa: B023
        yield {**row, **_of_torch(device, "softmax_loss", {}, *_for_torch(device, inputs))}


def compiled_score_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """Both by torch.compile, which takes seconds to compile each."""
    for size in clock.take(sizes.scores):
        inputs, heads = score_arrays(device, size)
        row = {"section": "compiled scores", **size._asdict()}
        yield {**row, **_of_torch(device, "all_scores", {"eps": 1e-5}, inputs, heads, "compiled")}
    for size, dtype in clock.take(_in_types(sizes), _name):
        row = {"section": "compiled scores", "dtype": dtype, **size._asdict()}
        arrays = _for_torch(device, loss_arrays(device, size, dtype))
        yield {**row, **_of_torch(device, "softmax_loss", {}, *arrays, "compiled")}


def _in_types(sizes: Sizes) -> Iterator[tuple[Loss, str]]:
    return itertools.product(sizes.losses, ("float32", "float16"))


def _name(case: tuple[Loss, str]) -> str:
    return f"{case[0]} {case[1]}"


def loss_step(device: Any, inputs: list[Any]) -> Function:
    """Echo's forward and backward of the loss."""
    outputs = outputs_of(device, "softmax_output", inputs)
    run, grad = ours(device, "softmax_output", inputs, outputs, [None], _LOSS)
    return lambda: (run(), grad())


def _for_torch(device: Any, inputs: list[Any]) -> tuple[list[Any], Any]:
    """Inputs and the gradient of the loss, 1, as torch takes them."""
    *arrays, label = inputs
    return [*arrays, label.long()], device.torch.ones((), device=device.where, dtype=arrays[0].dtype)


def loss_arrays(device: Any, size: Loss, dtype: str) -> list[Any]:
    """Rows, weights, bias and labels."""
    spread = 1 / math.sqrt(size.inputs)
    label = device.torch.randint(0, size.classes, (size.rows,), device=device.where, dtype=device.torch.int32)
    shapes = ((size.rows, size.inputs), (size.classes, size.inputs), (size.classes,))
    return [*(device.random(shape, dtype, spread) for shape in shapes), label]


def _ours(device: Any, make: Callable[[], Function]) -> Row:
    """Microseconds of a step of echo's, and the most MB that it holds without its inputs."""
    used = device.peak_bytes(lambda: make()())
    return {"ours_step_us": scaled(timed(device, make), 1e6), "ours_mb": used / 2**20}


def _of_torch(
    device: Any, operator: str, params: dict[str, float], inputs: list[Any], head: Any, name: str = "eager"
) -> Row:
    """The same of torch's step, eager or compiled; a reason where it fails, as for want of memory."""
    forward = forward_of(device.torch, operator, params)
    try:
        step = step_of(device.torch, device.torch.compile(forward) if name == "compiled" else forward, inputs, [head])
        with tensor_float(device, False):
            step()
            used = device.peak_bytes(step)
            return {f"{name}_step_us": scaled(timed(device, lambda: step), 1e6), f"{name}_mb": used / 2**20}
    except Exception as error:  # what others lack here says nothing of the kernels
        return {f"{name}_step_us": f"{type(error).__name__}: {error}"[:200]}
