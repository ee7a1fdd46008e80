"""NVIDIA's driver and its GPUs, asked through ``libcuda.so.1`` alone: no CUDA toolkit and no MXNet is needed."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import NamedTuple

_RELEASE = Path("/proc/driver/nvidia/version")
_MAJOR, _MINOR = 75, 76  # attributes of a device: the parts of its compute capability


class Gpu(NamedTuple):
    """A CUDA device: its name, its memory in bytes, its compute capability."""

    name: str
    bytes: int
    capability: tuple[int, int]


class Driver(NamedTuple):
    """The newest CUDA that the driver runs, its own version (empty where the kernel does not say it), its devices."""

    cuda: tuple[int, int]
    release: str
    gpus: tuple[Gpu, ...]


def driver() -> Driver:
    """The driver of this machine, and the devices that this process may use, in CUDA's order.

    Raises:
        LookupError: there is no driver, or it refuses to start; the message says so.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LookupError(f"there is no NVIDIA driver: {error}") from error
    version, count = ctypes.c_int(), ctypes.c_int()
    try:
        starts = cuda.cuInit(0) == 0  # it does not where there is no device
        cuda.cuDriverGetVersion(ctypes.byref(version))
        if starts:
            cuda.cuDeviceGetCount(ctypes.byref(count))
        gpus = tuple(_gpu(cuda, number) for number in range(count.value))
    except AttributeError as error:
        raise LookupError(f"the NVIDIA driver (libcuda.so.1) is too old or damaged: {error}") from error
    return Driver((version.value // 1000, version.value % 1000 // 10), _release(), gpus)


def bus_ids() -> tuple[str, ...]:
    """The bus ids of the devices that this process may use, in CUDA's order; other libraries know devices by them.

    Raises:
        LookupError: there is no driver, or it says none; the message says so.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        count, device, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(32)
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            raise LookupError("the NVIDIA driver finds no device")
        ids = []
        for number in range(count.value):
            if cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceGetPCIBusId(text, len(text), device):
                raise LookupError(f"the NVIDIA driver does not say where device {number} is")
            ids.append(text.value.decode("ascii", errors="replace"))
        return tuple(ids)
    except (OSError, AttributeError) as error:
        raise LookupError(f"there is no NVIDIA driver that fits: {error}") from error


def _gpu(cuda: ctypes.CDLL, number: int) -> Gpu:
    device, size, text = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), number)
    cuda.cuDeviceGetName(text, len(text), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    capability = [ctypes.c_int(), ctypes.c_int()]
    for part, which in zip(capability, (_MAJOR, _MINOR)):
        cuda.cuDeviceGetAttribute(ctypes.byref(part), which, device)
    return Gpu(text.value.decode(errors="replace"), size.value, (capability[0].value, capability[1].value))


def _release() -> str:
    try:
        match = re.search(r"\b\d+\.\d+(\.\d+)?\b", _RELEASE.read_text(encoding="utf-8"))
    except OSError:
        return ""
    return match[0] if match else ""
