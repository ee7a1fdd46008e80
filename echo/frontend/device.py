"""Describes the device, and everything else that measured seconds depend on."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
from pathlib import Path
from typing import Any

import mxnet as mx
from mxnet.base import _LIB

from echo.errors import UnsupportedError
from echo.system.process import cores, processor

DRIVER_FILE = Path("/proc/driver/nvidia/version")  # where the driver says which it is
# Variables that change which code a step runs; they are part of the key where they are set.
_SETTINGS = (
    "ECHO_CUBLAS", "ECHO_KERNELS_LEVEL", "MXNET_CUDA_ALLOW_TENSOR_CORE", "MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT", "MXNET_USE_MKLDNN_RNN", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip
_PROPERTIES_BYTES = 8192  # more than any version of cudaDeviceProp has; the name comes first


def device_key(ctx: mx.Context) -> str:
    """Names the device and everything else that measured seconds depend on."""
    hardware = _gpu(ctx.device_id) if ctx.device_type == "gpu" else processor()
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    one_dnn = os.environ.get("MXNET_MKLDNN_ENABLED", "1")
    settings = [f"{name} {os.environ[name]}" for name in _SETTINGS if os.environ.get(name)]
    general = [f"{cores()} cores", f"OMP_NUM_THREADS {threads}", f"oneDNN {one_dnn}", f"mxnet {mx.__version__}"]
    return ", ".join([hardware, *general, *settings])


def check_device(ctx: mx.Context) -> None:
    """Raises `UnsupportedError` for a GPU that is not there: MXNet would end the process while it frees its memory."""
    if ctx.device_type != "gpu":
        return
    if not mx.runtime.Features().is_enabled("CUDA"):
        raise UnsupportedError(f"{ctx} needs CUDA, which this MXNet was built without")
    try:
        count = mx.context.num_gpus()
    except mx.MXNetError:  # no driver
        count = 0
    if not count or ctx.device_id >= count:  # below 0 it is the GPU that the thread uses
        raise UnsupportedError(f"{ctx} is not there: expected a number below {count}, that of CUDA's GPUs")


@functools.lru_cache(maxsize=None)
def _gpu(number: int) -> str:
    """Name of a GPU by its number in this process, and the versions of driver, CUDA and cuDNN that it is used by.

    CUDA itself is asked: NVML counts all GPUs of the machine, CUDA those of ``CUDA_VISIBLE_DEVICES``, in another order.
    """
    # what is looked up in the libmxnet.so of a CUDA wheel is searched for in the libraries that it was linked to, too
    return gpu_text(_LIB, number)


def gpu_text(library: Any, number: int) -> str:
    """Describes a GPU by the functions of a library with CUDA's API; a function that is missing gives "?"."""
    properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
    try:
        name = "?" if library.cudaGetDeviceProperties(properties, number) else properties.value.decode(errors="replace")
    except AttributeError:
        name = "?"
    cuda = "/".join(_version(library, f"cuda{part}GetVersion") for part in ("Driver", "Runtime"))
    try:
        cudnn = str(library.cudnnGetVersion())
    except AttributeError:
        cudnn = "?"
    return f"{name}, driver {_driver()}, CUDA {cuda}, cuDNN {cudnn}"


def _version(library: Any, function: str) -> str:
    version = ctypes.c_int()
    try:
        failed = getattr(library, function)(ctypes.byref(version))
    except AttributeError:
        return "?"
    return "?" if failed else str(version.value)


def _driver() -> str:
    """The version of NVIDIA's driver, of which CUDA knows the CUDA version alone."""
    with contextlib.suppress(Exception):  # without NVML's module, or without the library behind it
        import pynvml

        pynvml.nvmlInit()
        try:
            version = pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
        return version.decode() if isinstance(version, bytes) else str(version)
    with contextlib.suppress(OSError):
        version_match = re.search(r"\d+\.\d[\d.]*", DRIVER_FILE.read_text(encoding="ascii", errors="replace"))
        return version_match[0] if version_match else "?"
    return "?"
