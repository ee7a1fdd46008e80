"""CUDA on this machine: its GPUs, and the libraries that MXNet's wheels need."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import NamedTuple

from echo.system.process import is_whole_library

# NVIDIA's driver and its GPUs, asked through ``libcuda.so.1`` alone: no CUDA toolkit and no MXNet is needed.

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


# The CUDA libraries that MXNet's CUDA wheels leave out, loaded from NVIDIA's pip wheels before mxnet is imported.
#
# Those wheels put their libraries into ``site-packages/nvidia/NAME/lib``, where the dynamic loader does not look. It
# finds a library that the process has already by its name, so that libraries loaded by their paths serve libmxnet.so.

_CUDA = re.compile(r"lib(cu[a-zA-Z]+|nccl|nvrtc|nvToolsExt)\.so(\.|$)")
_NOT_FOUND = re.compile(r"([^/:\s]+\.so[^/:\s]*): ")  # the beginning of the loader's error, in any language


def load_for(libmxnet: Path) -> str:
    """Loads libmxnet.so, and before it those libraries of NVIDIA's wheels that the dynamic loader does not find.

    Returns the first CUDA library that neither has, such as ``libcuda.so.1`` of the driver, else an empty text.

    Raises:
        OSError: the file is damaged, or cannot be read.
    """
    if not is_whole_library(libmxnet):
        raise OSError(f"expected a shared library, got {libmxnet}")
    missing = _load(str(libmxnet), set())
    return missing if _CUDA.match(missing) else ""


def of_wheels() -> dict[str, Path]:
    """The libraries of NVIDIA's wheels on ``sys.path``, by name; of several of a name, what Python would import."""
    paths: dict[str, Path] = {}
    for entry in sys.path:
        for path in sorted(Path(entry).glob("nvidia/*/lib/lib*.so*")):
            paths.setdefault(path.name, path)
    return paths


def _load(library: str, begun: set[str]) -> str:
    """Loads a library after those of wheels that it needs; returns the name of one that cannot be loaded, or ''."""
    while True:
        try:
            ctypes.CDLL(library)
            return ""
        except OSError as error:
            found = _NOT_FOUND.match(str(error))
        if found is None:
            return Path(library).name
        name = found[1]
        path = None if name in begun else of_wheels().get(name)
        if path is None or not is_whole_library(path):
            return name
        begun.add(name)
        missing = _load(str(path), begun)
        if missing:
            return missing
