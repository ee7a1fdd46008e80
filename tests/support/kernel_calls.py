"""Calls of the kernels' library, with arrays of NumPy's or on CUDA devices; MXNet calls it without Python."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Sequence

import numpy as np

from echo.errors import KernelError
from echo.kernels import library
from echo.kernels.library import DTYPES
from echo.native import function

SKIP, WRITE, ADD = 0, 1, 3  # what happens to an output
MOST_AXES = 5
_ALIGNMENT = 64  # bytes, of a workspace


class EchoTensor(ctypes.Structure):
    """The same as in echo_kernels.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MOST_AXES),
    )


class EchoCall(ctypes.Structure):
    """The same as in echo_kernels.h."""

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("inputs", ctypes.POINTER(EchoTensor)),
        ("outputs", ctypes.POINTER(EchoTensor)),
        ("req", ctypes.POINTER(ctypes.c_int32)),
        ("params", ctypes.POINTER(ctypes.c_double)),
        ("num_in", ctypes.c_int32),
        ("num_out", ctypes.c_int32),
        ("num_params", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("random", ctypes.c_void_p),
    )


@functools.lru_cache(maxsize=None)
def of_backend(backend: str, purpose: str) -> Any:
    if backend not in ("cpu", "cuda"):
        raise KernelError(f"there is no backend {backend!r}, expected 'cpu' or 'cuda'")
    result = ctypes.c_int if purpose == "call" else ctypes.c_size_t
    return function(library.kernels_library(), f"echo_{backend}_{purpose}", result, ctypes.POINTER(EchoCall))


def _tensor(array: Any, kernel: str, role: str, writable: bool) -> EchoTensor:
    if array is None:
        return EchoTensor()
    if isinstance(array, np.ndarray):
        if not array.flags.c_contiguous:
            raise KernelError(f"{kernel}: {role}, shape {array.shape}, is not dense, expected a row-major array")
        if writable and not array.flags.writeable:
            raise KernelError(f"{kernel}: {role} is read-only")
        address, shape, dtype = array.ctypes.data, array.shape, array.dtype.name
    else:
        address, shape, dtype = _on_device(array, kernel, role)
    if dtype not in DTYPES:
        raise KernelError(f"{kernel}: {role} has type {dtype}, expected one of {', '.join(DTYPES)}")
    if len(shape) > MOST_AXES:
        raise KernelError(f"{kernel}: {role} has {len(shape)} axes, expected {MOST_AXES} at most")
    if 0 in shape:
        address = _ALIGNMENT  # it is there, and nothing reads it; some frameworks say 0, as of one that is absent
    return EchoTensor(address, DTYPES[dtype], len(shape), (ctypes.c_int64 * MOST_AXES)(*shape))


def _on_device(array: Any, kernel: str, role: str) -> tuple[int, tuple[int, ...], str]:
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise KernelError(
            f"{kernel}: {role} is a {type(array).__name__}, expected a NumPy array or one on a CUDA device"
        )
    if interface.get("strides") is not None:
        raise KernelError(f"{kernel}: {role} is not dense, expected a row-major array")
    return interface["data"][0] or 0, tuple(interface["shape"]), np.dtype(interface["typestr"]).name


def _stream_of(kernel: str, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> int | None:
    """The stream on which the arrays of a call are written and read; None where none of them says so.

    Raises:
        KernelError: they name different ones, or 0, which the protocol forbids.
    """
    arrays = [(f"input {i}", array) for i, array in enumerate(inputs)]
    arrays += [(f"output {i}", array) for i, array in enumerate(outputs)]
    first = None
    for role, array in [*arrays, ("the workspace", workspace)]:
        stream = getattr(array, "__cuda_array_interface__", {}).get("stream")  # since version 3 of the protocol
        if stream is None:
            continue
        if stream == 0:
            raise KernelError(f"{kernel}: {role} names stream 0, expected 1 for the default stream, or an address")
        if first and first[1] != stream:
            raise KernelError(
                f"{kernel}: {role} is used on stream {stream:#x}, {first[0]} on stream {first[1]:#x}, expected one "
                "stream: make one of them wait for the other, and hand it over (stream=...)"
            )
        first = first or (role, int(stream))
    return first[1] if first else None


def raw_call(
    kernel: str, inputs: Sequence[Any], outputs: Sequence[Any], req: Sequence[int] | None, params: Sequence[float]
) -> EchoCall:
    tensors_in = [_tensor(array, kernel, f"input {i}", False) for i, array in enumerate(inputs)]
    tensors_out = [_tensor(array, kernel, f"output {i}", True) for i, array in enumerate(outputs)]
    if req is None:
        req = [SKIP if array is None else WRITE for array in outputs]
    if len(req) != len(outputs):
        raise KernelError(f"{kernel}: got {len(req)} reqs for {len(outputs)} outputs")
    return EchoCall(
        kernel=kernel.encode(),
        inputs=(EchoTensor * len(inputs))(*tensors_in),
        outputs=(EchoTensor * len(outputs))(*tensors_out),
        req=(ctypes.c_int32 * len(req))(*req),
        params=(ctypes.c_double * len(params))(*params),
        num_in=len(inputs),
        num_out=len(outputs),
        num_params=len(params),
    )


def workspace_bytes(
    kernel: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    req: Sequence[int] | None = None,
    params: Sequence[float] = (),
    backend: str = "cpu",
) -> int:
    """Bytes of workspace that `call` needs with these arguments.

    Raises:
        KernelError: the kernel does not take them.
        NativeError: the library is missing or damaged.
    """
    return workspace_bytes_of(raw_call(kernel, inputs, outputs, req, params), backend)


def workspace_bytes_of(raw: EchoCall, backend: str) -> int:
    needed: int = of_backend(backend, "workspace")(ctypes.byref(raw))
    if needed == ctypes.c_size_t(-1).value:
        raise library._error()
    return needed


def call(
    kernel: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    req: Sequence[int] | None = None,
    params: Sequence[float] = (),
    backend: str = "cpu",
    workspace: Any = None,
    stream: int | None = None,
    random: int | None = None,
) -> None:
    """Runs a kernel of ``table.cc``: its inputs, outputs and parameters stand there.

    Args:
        kernel: a name, or NAME_grad.
        inputs: arrays of one floating type, dense and row-major: NumPy's on the CPU, on CUDA anything with
            ``__cuda_array_interface__``; None where one is absent.
        outputs: arrays to write into; None where one is not wanted.
        req: what happens to each output: `SKIP`, `WRITE` (where None) or `ADD` (gradients only).
        params: numbers.
        backend: "cpu" or "cuda".
        workspace: memory of `workspace_bytes` bytes, as an array of uint8; where None it is allocated (CPU only).
        stream: on CUDA, the address of a CUstream. Where None, the one that the arrays name (``stream`` in
            ``__cuda_array_interface__``), else the default stream, for which other streams need not wait.
        random: on the CPU, the address of 1024 states of ``std::mt19937`` as MXNet keeps them.

    Raises:
        KernelError: the kernel does not take these arguments; nothing was written.
        NativeError: the library is missing or damaged.
    """
    raw = raw_call(kernel, inputs, outputs, req, params)
    needed = workspace_bytes_of(raw, backend)
    if workspace is None and needed and backend == "cpu":
        workspace = aligned(needed)
    if workspace is not None:
        memory = _tensor(workspace, kernel, "the workspace", True)
        raw.workspace, raw.workspace_bytes = memory.data, int(np.prod(workspace.shape))
    raw.random, raw.stream = random, _stream_of(kernel, inputs, outputs, workspace) if stream is None else stream
    if of_backend(backend, "call")(ctypes.byref(raw)):
        raise library._error()


def aligned(size: int) -> Any:
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size]
