"""The parts of a step of an LSTM layer: the barrier of the grid, the product, the cell; each timed alone."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Callable, Iterator

from benchmarks.gpu_barrier import BarrierKernel, compiled, nvrtc_at_hand
from benchmarks.gpu_clock import Clock, Row
from benchmarks.gpu_layers import layer_arrays
from benchmarks.gpu_library import using_library
from benchmarks.gpu_ours import Function, ours, outputs_of, scaled, tensor_float, timed
from benchmarks.gpu_sizes import Recurrent, Sizes

_BARRIERS = 1000
_UNITS = 4  # hidden units of a block of lstm_steps: kStepUnits of arguments.h
_LIMIT = 0.2


def part_rows(
    device: Any, sizes: Sizes, clock: Clock, step_by_step: Path, load: Callable[[Any], BarrierKernel] | None = None
) -> Iterator[Row]:
    """Microseconds of a step in float32, forward: all of it on both routes, and its parts.

    A step is the difference of a whole layer and half of one. ``step_by_step`` is a library without grid barrier;
    ``load`` gives the barrier's kernel on a device.
    """
    kernel = _attempt(load or _loaded, device)
    for size in clock.take(sizes.parts):
        row: Row = {"section": "parts", "H": size.hidden, "B": size.batch, "T": size.steps}
        row["resident_step_us"] = _step_us(device, size)
        with using_library(step_by_step):
            row["launched_step_us"] = _step_us(device, size)
        row["barrier_us"] = kernel if isinstance(kernel, str) else _barrier_us(device, size, kernel)
        h, weights = (device.random(shape, "float32") for shape in _shapes(size))
        result = device.empty((size.batch, 4 * size.hidden), "float32")
        with tensor_float(device, False):
            product = timed(device, lambda h=h, w=weights, to=result: lambda: device.torch.mm(h, w.t(), out=to))
        row["cublas_product_us"] = scaled(product, 1e6)
        inputs = [result, device.random((size.batch, size.hidden), "float32")]
        cell = device.prepare("lstm_cell", inputs, outputs_of(device, "lstm_cell", inputs), [1, 1], [])
        yield {**row, "cell_us": device.seconds(cell, limit=_LIMIT) * 1e6}


def _shapes(size: Recurrent) -> tuple[tuple[int, int], tuple[int, int]]:
    return (size.batch, size.hidden), (4 * size.hidden, size.hidden)


def _step_us(device: Any, size: Recurrent) -> float:
    few = max(1, size.steps // 2)
    seconds = [device.seconds(_forward(device, size, steps), limit=_LIMIT) for steps in (few, size.steps)]
    return float((seconds[1] - seconds[0]) / max(1, size.steps - few) * 1e6)


def _forward(device: Any, size: Recurrent, steps: int) -> Function:
    inputs, outputs, heads = layer_arrays(device, size.hidden, size.batch, steps, "float32")
    return ours(device, "lstm_layer", inputs, outputs, heads, {"reverse": 0.0})[0]


def _barrier_us(device: Any, size: Recurrent, kernel: BarrierKernel) -> float | str:
    blocks = -(-size.hidden // _UNITS)
    counter = device.empty((2,), "float32")

    def barriers() -> None:
        counter.zero_()
        kernel.launch(blocks, _BARRIERS, counter.data_ptr(), device.stream())

    return scaled(timed(device, lambda: barriers), 1e6 / _BARRIERS)


def _loaded(device: Any) -> BarrierKernel:
    capability = device.torch.cuda.get_device_capability(device.where)
    return BarrierKernel(compiled(nvrtc_at_hand(), capability), ctypes.CDLL("libcuda.so.1"))


def _attempt(load: Callable[[Any], BarrierKernel], device: Any) -> BarrierKernel | str:
    """The kernel, or why there is none: the other parts can be timed without."""
    try:
        return load(device)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
