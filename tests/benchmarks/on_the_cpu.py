"""The device of the GPU checks without a GPU: torch on the CPU, and the emulated kernels on its arrays."""

from __future__ import annotations

import timeit
from typing import Any

from benchmarks.gpu_device import Device


class OnTheCpu(Device):
    """Times are those of the emulation, and mean nothing."""

    def __init__(self) -> None:
        super().__init__("cpu")

    def describe(self) -> dict[str, Any]:
        return {"gpu": "emulated"}

    def bus_id(self) -> str:
        return "0000:00:00.0"

    def as_argument(self, array: Any) -> Any:
        return array.detach().numpy()

    def stream(self) -> int:
        return 0

    def wait(self) -> None:
        pass

    def peak_bytes(self, function: Any) -> int:
        function()
        return 0

    def once(self, function: Any) -> float:
        return timeit.timeit(function, number=1)

    def seconds(self, function: Any, rounds: int = 15, limit: float = 1.0) -> float:
        return super().seconds(function, 2, 0.0)
