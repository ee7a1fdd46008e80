"""Both routes of an LSTM layer, many steps after a grid barrier and one kernel a step, have to give the same bits.

They add in the same order, so whatever differs was read before it was written: no other check is as good at races.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

import numpy as np

from benchmarks.gpu_cases import Case, draw
from benchmarks.gpu_clock import Clock, Row
from benchmarks.gpu_library import using_library
from benchmarks.gpu_sizes import Sizes
from tests.support.kernel_calls import WRITE


class Layer:
    """A layer and its gradient on a device, with memory of its own that is filled with NaN before each run."""

    def __init__(self, device: Any, case: Case, dtype: str, generator: np.random.Generator) -> None:
        self.device, self.params = device, list(case.params.values())
        inputs = draw(case, dtype, generator)
        self.inputs = [device.place(array) for array in inputs]
        dims = {**case.dims, "4H": 4 * case.dims["H"]}
        shapes = [tuple(dims[axis] for axis in axes.split()) for axes in ("T B H", "B H", "B H", "T B 4H")]
        self.outputs = [device.place(np.zeros(shape, dtype)) for shape in shapes]
        heads = [generator.normal(size=shape).astype(dtype) for shape in shapes[:3]]
        self.heads = [*map(device.place, heads), None]
        self.gradients = [device.place(np.zeros_like(array)) for array in inputs]

    def run(self) -> list[Any]:
        """All outputs and gradients."""
        results = [*self.outputs, *self.gradients]
        for array in results:
            self.device.blank(array)
        self.device.call("lstm_layer", self.inputs, self.outputs, [WRITE] * 4, self.params)
        arguments = [*self.heads, *self.inputs, *self.outputs]
        self.device.call("lstm_layer_grad", arguments, self.gradients, [WRITE] * len(self.gradients), self.params)
        return results


def route_rows(device: Any, sizes: Sizes, clock: Clock, seed: int, step_by_step: Path) -> Iterator[Row]:
    """A row for each size and type, "failed" where a result differs.

    ``step_by_step`` is a library without grid barrier.
    """
    cases = [
        (Case("lstm_layer", {"T": steps, "B": batch, "I": hidden, "H": hidden}, {"reverse": number % 2}), dtype)
        for number, (hidden, batch, steps, _) in enumerate(sizes.routes)
        for dtype in ("float32", "float16")
    ]
    for number, (case, dtype) in enumerate(clock.take(cases, lambda case: f"{case[0]}, {case[1]}")):
        layer = Layer(device, case, dtype, np.random.default_rng([seed, number]))
        with using_library(step_by_step):
            expected = [device.fetch(array).copy() for array in layer.run()]
        placed = [device.place(array) for array in expected]
        row: Row = {"section": "routes", "dtype": dtype, **case.dims, "repetitions": sizes.repetitions}
        for repetition in range(sizes.repetitions):
            different = [i for i, array in enumerate(layer.run()) if not device.same(array, placed[i])]
            if different:
                what = f"results {different} of both routes differ in run {repetition}"
                row["failed"] = f"{case}, {dtype}, seed {seed}: {what}"
                break
        yield row
