"""A GPU as the checks see it: torch's arrays, the kernels' library on torch's stream, times by the device's events."""

from __future__ import annotations

import ctypes
import statistics
import time
from typing import Any, Callable

import numpy as np

from echo.errors import KernelError
from echo.kernels import library
from tests.support import kernel_calls

Function = Callable[[], Any]


class Device:
    """torch on a CUDA device.

    Args:
        where: torch's name of the device.
    """

    def __init__(self, where: str = "cuda") -> None:
        import torch

        self.torch, self.where = torch, where

    def describe(self) -> dict[str, Any]:
        """The facts that a result depends on."""
        properties = self.torch.cuda.get_device_properties(self.where)
        return {
            "gpu": properties.name,
            "gpu_memory_gb": round(properties.total_memory / 2**30),
            "multiprocessors": properties.multi_processor_count,
            "l2_mb": getattr(properties, "L2_cache_size", 0) / 2**20,
            "cudnn": self.torch.backends.cudnn.version(),
        }

    def bus_id(self) -> str:
        """Its name among the devices of the machine, as NVML takes it."""
        found = self.torch.cuda.get_device_properties(self.where)
        return f"{found.pci_domain_id:04X}:{found.pci_bus_id:02X}:{found.pci_device_id:02X}.0"

    def place(self, array: Any) -> Any:
        """A copy of an array of NumPy's on the device."""
        return None if array is None else self.torch.from_numpy(np.array(array, order="C")).to(self.where)

    def fetch(self, array: Any) -> Any:
        """A copy of an array of the device for NumPy."""
        return array.cpu().numpy()

    def blank(self, array: Any) -> None:
        """Fills an array of the device with NaN."""
        array.fill_(float("nan"))

    def same(self, one: Any, two: Any) -> bool:
        """Whether two arrays of the device have the same bits."""
        bits = {2: self.torch.int16, 4: self.torch.int32}[one.element_size()]
        return bool(self.torch.equal(one.view(bits), two.view(bits)))

    def random(self, shape: tuple[int, ...], dtype: str, size: float = 1.0) -> Any:
        """Normal numbers of that size."""
        return (self.torch.randn(shape, device=self.where) * size).to(getattr(self.torch, dtype))

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Memory of that shape and type, with any content."""
        return self.torch.empty(shape, device=self.where, dtype=getattr(self.torch, dtype))

    def as_argument(self, array: Any) -> Any:
        """An array as `tests.support.kernel_calls.call` takes it."""
        return array

    def stream(self) -> int:
        """torch's current stream, as an address."""
        address: int = self.torch.cuda.current_stream(self.where).cuda_stream
        return address

    def prepare(
        self, kernel: str, inputs: list[Any], outputs: list[Any], req: list[int], params: list[float]
    ) -> Function:
        """A function that enqueues this call: arguments are checked and packed once, as an extension would do it."""
        arguments = [[x if x is None else self.as_argument(x) for x in arrays] for arrays in (inputs, outputs)]
        raw = kernel_calls.raw_call(kernel, *arguments, req, params)
        needed = kernel_calls.workspace_bytes_of(raw, "cuda")
        workspace = self.empty((max(1, needed),), "uint8")
        raw.workspace, raw.workspace_bytes, raw.stream = workspace.data_ptr(), needed, self.stream()
        run, pointer = kernel_calls.of_backend("cuda", "call"), ctypes.byref(raw)
        kept = (arguments, inputs, outputs, workspace)

        def launch() -> Any:
            if run(pointer):
                raise library._error()
            return kept

        return launch

    def call(self, kernel: str, inputs: list[Any], outputs: list[Any], req: list[int], params: list[float]) -> None:
        """Runs a kernel and waits for it."""
        self.prepare(kernel, inputs, outputs, req, params)()
        self.wait()

    def wait(self) -> None:
        """Until the device has done what it was given.

        Raises:
            KernelError: a kernel failed.
        """
        try:
            self.torch.cuda.synchronize(self.where)
        except RuntimeError as error:
            raise KernelError(str(error)) from error

    def peak_bytes(self, function: Function) -> int:
        """The most bytes that torch holds at once in a call, without those that it held before."""
        self.wait()
        before = self.torch.cuda.memory_allocated(self.where)
        self.torch.cuda.reset_peak_memory_stats(self.where)
        function()
        self.wait()
        return int(self.torch.cuda.max_memory_allocated(self.where) - before)

    def once(self, function: Function) -> float:
        """Seconds between two events of the device around a call."""
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        function()
        events[1].record()
        events[1].synchronize()
        return float(events[0].elapsed_time(events[1])) / 1e3

    def seconds(self, function: Function, rounds: int = 15, limit: float = 1.0) -> float:
        """The median over so many rounds, less where ``limit`` seconds are over; after three to warm up."""
        for _ in range(3):
            function()
        self.wait()
        started, times = time.monotonic(), []
        while len(times) < rounds and (len(times) < 3 or time.monotonic() - started < limit):
            times.append(self.once(function))
        return statistics.median(times)
