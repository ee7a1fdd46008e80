"""The key of a plan: the graph, the shapes, and the device with its libraries."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
from pathlib import Path
from typing import Any, Iterator, Sequence

import mxnet as mx
import numpy as np
from mxnet.base import _LIB

from echo.errors import UnsupportedError
from echo.estimators.footprint import AUXILIARY, GRADIENTS, INPUTS, WEIGHTS
from echo.frontend.mxnet_settings import (
    COPIES_VARIABLE,
    FUSION_VARIABLE,
    RNN_VARIABLES,
    changed_workspace_slots,
    pool_settings,
)
from echo.frontend.symbols import Binding, type_name
from echo.ir.graph import Graph
from echo.ir.training_graph import Runner
from echo.plans.key import AUXILIARY as AUXILIARY_STATE
from echo.plans.key import Argument, PlanKey, digest, operators
from echo.plans.variables import debug
from echo.system.process import cores, processor

DRIVER_FILE = Path("/proc/driver/nvidia/version")  # where the driver says which it is
# Variables that change which code a step runs; they are part of the key where they are set.
_SETTINGS = (
    "MXNET_CUDA_ALLOW_TENSOR_CORE", "MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT", "MXNET_USE_MKLDNN_RNN", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip
_PROPERTIES_BYTES = 8192  # more than any version of cudaDeviceProp has; the name comes first


def device_key(ctx: mx.Context) -> str:
    """Names the device and everything else that measured seconds depend on."""
    hardware = _gpu(ctx.device_id) if ctx.device_type == "gpu" else processor()
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    one_dnn = os.environ.get("MXNET_MKLDNN_ENABLED", "1")
    settings = [f"{name} {os.environ[name]}" for name in _SETTINGS if os.environ.get(name)]
    kernels = debug()
    settings += [f"level {kernels.level}"] * bool(kernels.level) + ["without cuBLAS"] * (not kernels.cublas)
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
    with contextlib.suppress(Exception):  # without NVML's module, or without its library
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


# What planning is for, made from a bind: the key of its plan, its model family, and the bytes of its arrays.

# What is planned depends on them; on GPUs also on whether MXNet fuses, on CPUs on what kernels may draw.
_KEY_SETTINGS = ("NNVM_EXEC_MATCH_RANGE", "MXNET_BACKWARD_DO_MIRROR")


def arrays(binding: Binding) -> Iterator[tuple[int, str, int]]:
    """The arrays that a bind is given, which are there all the time: position, kind and bytes.

    Positions are those of the arguments, then of the auxiliary states.
    """
    arguments = zip(binding.arg_shapes, binding.arg_types, binding.grad_req)
    for place, (shape, dtype, request) in enumerate(arguments):
        size = _bytes(shape, dtype)
        yield place, INPUTS if request == "null" else WEIGHTS, size
        if request != "null":
            yield place, GRADIENTS, size
    for place, (shape, dtype) in enumerate(zip(binding.aux_shapes, binding.aux_types), len(binding.arg_shapes)):
        yield place, AUXILIARY, _bytes(shape, dtype)


def _bytes(shape: tuple[int, ...], dtype: object) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize  # type: ignore[call-overload, no-any-return]


def static_bytes(binding: Binding) -> dict[str, int]:
    """The bytes of the arrays that a bind is given, by kind."""
    sizes = {WEIGHTS: 0, GRADIENTS: 0, INPUTS: 0, AUXILIARY: 0}
    for _, kind, size in arrays(binding):
        sizes[kind] += size
    return sizes


def call_of(names: Sequence[str], binding: Binding, ctx: mx.Context) -> dict[str, Any]:
    """Describes a bind as a JSON value: shapes, types and gradient requests by name, and the device."""
    return {
        "ctx": [ctx.device_type, ctx.device_id],
        "shapes": {name: list(shape) for name, shape in zip(names, binding.arg_shapes)},
        "types": {name: type_name(dtype) for name, dtype in zip(names, binding.arg_types)},
        "grad_req": dict(zip(names, binding.grad_req)),
    }


def family(graph: Graph, binding: Binding, device: str, runner: Runner) -> str:
    """A text that is equal for binds that train the same arguments on one device, as a BucketingModule's lengths."""
    names = sorted(graph.variable_names)
    return json.dumps([names, sorted(set(binding.grad_req)), device, runner])


def plan_key(graph: Graph, binding: Binding, device: str, runner: Runner = Runner.EXECUTOR) -> PlanKey:
    """The key of a plan for this bind: the graph, its arguments, the device and the settings that it depends on."""
    args = list(zip(binding.arg_shapes, binding.arg_types, binding.grad_req))
    args += [(shape, dtype, AUXILIARY_STATE) for shape, dtype in zip(binding.aux_shapes, binding.aux_types)]
    names = (*_KEY_SETTINGS, *([FUSION_VARIABLE] if device == "gpu" else [COPIES_VARIABLE, *RNN_VARIABLES]))
    settings = {name: os.environ[name] for name in names if os.environ.get(name)}
    return PlanKey(
        graph=digest(graph),
        operators=operators(graph),
        arguments=tuple(Argument(shape, type_name(dtype), request) for shape, dtype, request in args),
        device=device,
        runner=runner,
        # workspaces are counted in each of the slots
        settings={**settings, **changed_workspace_slots(device, runner), **pool_settings(device, runner)},
    )
