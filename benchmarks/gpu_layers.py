"""Training steps of recurrent layers against cuDNN: a grid, DeepBench's layers, FlashRNN's sweep over head sizes."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

from benchmarks.gpu_clock import Clock, Row
from benchmarks.gpu_gru import GruStep
from benchmarks.gpu_library import using_library
from benchmarks.gpu_ours import Function, ours, scaled, tensor_float, timed
from benchmarks.gpu_sizes import Recurrent, Sizes
from benchmarks.gpu_torch import UnfusedLstm, cudnn_step, step_of

_LIMIT = 0.4  # seconds for the rounds of one time


def layer_arrays(device: Any, hidden: int, batch: int, steps: int, dtype: str) -> tuple[list[Any], ...]:
    """Inputs, outputs and gradients of the outputs of an LSTM layer with as many inputs as units."""
    size = 1 / math.sqrt(hidden)
    weights = [device.random(shape, dtype, size) for shape in ((4 * hidden, hidden), (4 * hidden,)) * 2]
    states = [device.random((batch, hidden), dtype) for _ in "hc"]
    inputs = [device.random((steps, batch, hidden), dtype), *weights, *states]
    shapes = [(steps, batch, hidden), (batch, hidden), (batch, hidden), (steps, batch, 4 * hidden)]
    outputs = [device.empty(shape, dtype) for shape in shapes]
    return inputs, outputs, [*(device.random(shape, dtype) for shape in shapes[:3]), None]


def layer_step(device: Any, inputs: list[Any], outputs: list[Any], heads: list[Any]) -> Function:
    """Echo's forward and backward of an LSTM layer."""
    run, grad = ours(device, "lstm_layer", inputs, outputs, heads, {"reverse": 0.0})
    return lambda: (run(), grad())


def _in_types(sizes: Iterable[Recurrent]) -> Iterator[tuple[Recurrent, str]]:
    return itertools.product(sizes, ("float32", "float16"))


def _name(case: tuple[Recurrent, str]) -> str:
    return f"{case[0]} {case[1]}"


def layer_rows(device: Any, sizes: Sizes, clock: Clock, step_by_step: Path) -> Iterator[Row]:
    """A training step of an LSTM layer, all gradients included; ``step_by_step`` is a library without grid barrier."""
    for size, dtype in clock.take(_in_types(sizes.layers), _name):
        arrays = layer_arrays(device, size.hidden, size.batch, size.steps, dtype)
        row = _row("layer", size, dtype)
        row["ours_ms"] = device.seconds(layer_step(device, *arrays), limit=_LIMIT) * 1e3
        with using_library(step_by_step):
            row["step_by_step_ms"] = device.seconds(layer_step(device, *arrays), limit=_LIMIT) * 1e3
        yield {**row, **_layer_of_torch(device, arrays[0], arrays[2][:3], dtype)}


def _row(section: str, size: Recurrent, dtype: str) -> Row:
    return {"section": section, "dtype": dtype, "H": size.hidden, "B": size.batch, "T": size.steps}


def _layer_of_torch(device: Any, inputs: list[Any], heads: list[Any], dtype: str) -> Row:
    """The same step by cuDNN, and unfused."""
    x, wi, bi, wh, bh, h0, c0 = inputs
    row = _of_cudnn(device, dtype, lambda: cudnn_step(device.torch, x, h0.shape[1], heads))
    with tensor_float(device, False):
        for hoisted, name in ((False, "unfused_ms"), (True, "unfused_hoisted_ms")):
            forward = UnfusedLstm(device.torch, hoisted)
            seconds = timed(device, step_of, device.torch, forward, [x, h0, c0, wi, bi, wh, bh], heads)
            row[name] = scaled(seconds, 1e3)
    return row


def _of_cudnn(device: Any, dtype: str, make: Callable[[], Function]) -> Row:
    """A step by cuDNN; in float32 a second time where it may round to 11 bits (TF32)."""
    row: Row = {}
    for allowed, name in ((False, "cudnn_ms"), (True, "cudnn_tf32_ms"))[: 2 if dtype == "float32" else 1]:
        with tensor_float(device, allowed):
            row[name] = scaled(timed(device, make), 1e3)
    return row


def deepbench_lstm_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """DeepBench's LSTM layers."""
    for size, dtype in clock.take(_in_types(sizes.deepbench_lstm), _name):
        yield {**_row("deepbench lstm", size, dtype), **_lstm_against_cudnn(device, size, dtype)}


def _lstm_against_cudnn(device: Any, size: Recurrent, dtype: str) -> Row:
    """As many layers as there are heads, one after the other."""
    arrays = layer_arrays(device, size.hidden, size.batch, size.steps, dtype)
    step = layer_step(device, *arrays)
    row = {"ours_ms": device.seconds(_times(size.heads, step), limit=_LIMIT) * 1e3}

    def make() -> Function:
        return _times(size.heads, cudnn_step(device.torch, arrays[0][0], size.hidden, arrays[2][:3]))

    return {**row, **_of_cudnn(device, dtype, make)}


def _times(times: int, step: Function) -> Function:
    return step if times == 1 else lambda: [step() for _ in range(times)]


def deepbench_gru_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """DeepBench's GRU layers, of cuBLAS products and echo's GRU cells, as MXNet runs them."""
    for size, dtype in clock.take(_in_types(sizes.deepbench_gru), _name):
        with tensor_float(device, False):
            step = GruStep(device, size, dtype)
            row = {**_row("deepbench gru", size, dtype), "ours_ms": device.seconds(step, limit=_LIMIT) * 1e3}
        make = lambda made=step, of=size: cudnn_step(device.torch, made.x, of.hidden, made.heads, "GRU")  # noqa: E731
        yield {**row, **_of_cudnn(device, dtype, make)}


def flashrnn_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """FlashRNN's sweep over the size of a head: heads of so many units, each a layer of its own."""
    for size, dtype in clock.take(_in_types(sizes.flashrnn), _name):
        row = {**_row("flashrnn", size, dtype), "heads": size.heads}
        yield {**row, **_lstm_against_cudnn(device, size, dtype)}
