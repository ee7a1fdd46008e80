"""The matrix products of an LSTM layer by cuBLAS in several layouts: what echo's own products compete with."""

from __future__ import annotations

from typing import Any, Callable, Iterator

from benchmarks.gpu_clock import Clock, Row
from benchmarks.gpu_ours import tensor_float
from benchmarks.gpu_sizes import Sizes


def _layout_ways(device: Any, hidden: int, batch: int, steps: int) -> dict[str, Callable[[], Any]]:
    matmul = device.torch.mm
    h, weights = device.random((batch, hidden), "float32"), device.random((4 * hidden, hidden), "float32")
    x, h_turned = device.random((steps * batch, hidden), "float32"), device.random((hidden, batch), "float32")
    parts, turned = x.split(batch), weights.t()
    result, whole = (device.empty((rows, 4 * hidden), "float32") for rows in (batch, steps * batch))
    result_turned = device.empty((4 * hidden, batch), "float32")
    return {
        "row_major_us": lambda: [matmul(h, turned, out=result) for _ in range(steps)],
        "transposed_us": lambda: [matmul(weights, h_turned, out=result_turned) for _ in range(steps)],
        "inputs_by_step_us": lambda: [matmul(part, turned, out=result) for part in parts],
        "inputs_hoisted_us": lambda: matmul(x, turned, out=whole),
    }


def layout_rows(device: Any, sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """Products of a layer by cuBLAS: state by weights row-major and transposed (EcoRNN), inputs by step and at once."""
    for hidden, batch, steps, _ in clock.take(sizes.layers):
        with tensor_float(device, False):
            ways = _layout_ways(device, hidden, batch, steps)
            times = {name: device.seconds(way, limit=0.2) * 1e6 for name, way in ways.items()}
        yield {"section": "layout", "H": hidden, "B": batch, "T": steps, **times}
