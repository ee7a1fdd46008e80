"""The native kernels: their library, the files of those for CUDA, and the bytes of the operators' workspaces."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any, Mapping, Sequence

from echo.errors import KernelError
from echo.native import function, load
from echo.system.cuda import of_wheels
from echo.system.files import cache_folder

# The workspace of an operator ``_echo_NAME`` before it runs, which planning counts.

MOST_BYTES = 2**31 - 1 - 64  # that MXNet hands to an operator of an extension


def operator_workspace(
    kernel: str, attrs: Mapping[str, str], shapes: Sequence[tuple[int, ...]], dtype: str, backend: str
) -> int:
    """Bytes that the operator of a kernel, or its gradient, takes as workspace, whichever takes more; asks no device.

    Args:
        kernel: its name, without ``_echo_``.
        attrs: the attributes of the node in MXNet's graph.
        shapes: those of the inputs, as they are in MXNet's graph.
        dtype: the type of its floating arrays, "float32" or "float16".
        backend: "cpu" or "cuda".

    Raises:
        KernelError: the operator cannot have such inputs.
        NativeError: the library is missing or damaged.
    """
    arrays = [(ctypes.c_int64 * len(shape))(*shape) for shape in shapes]
    rows = [ctypes.cast(array, ctypes.POINTER(ctypes.c_int64)) for array in arrays]
    needed: int = _function()(
        kernel.encode(), _texts(attrs.keys()), _texts(attrs.values()), len(attrs),
        (ctypes.POINTER(ctypes.c_int64) * len(rows))(*rows), (ctypes.c_int * len(rows))(*map(len, shapes)), len(rows),
        DTYPES[dtype], int(backend == "cuda"),
    )  # fmt: skip
    if needed == ctypes.c_size_t(-1).value:
        raise _error()
    return needed


def _texts(texts: Any) -> Any:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


@functools.lru_cache(maxsize=None)
def _function() -> Any:
    texts, shapes = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))
    arguments = (ctypes.c_char_p, texts, texts, ctypes.c_int, shapes, ctypes.POINTER(ctypes.c_int), *[ctypes.c_int] * 3)
    return function(kernels_library(), "echo_operator_workspace", ctypes.c_size_t, *arguments)


# The kernels' library through ctypes.

DTYPES = {"float32": 0, "float16": 2, "uint8": 3, "int32": 4}


@functools.lru_cache(maxsize=None)
def kernels_library() -> ctypes.CDLL:
    """The kernels' library.

    Raises:
        NativeError: it was not built or cannot be loaded.
    """
    library = load("libecho_kernels.so", sys.modules["echo.kernels"].__path__)
    set_places(library, *cuda_places().values())
    return library


def cuda_places() -> dict[str, str]:
    """Where the PTX of CUDA kernels and NVRTC are, as variables of a process that loads the kernels without Python.

    The folders of PTX are separated by colons; the last one, which is in the cache, is written to.
    """
    folders = [*(Path(folder) / "ptx" for folder in sys.modules["echo.kernels"].__path__), cache_folder() / "ptx"]
    nvrtc = of_wheels().get("libnvrtc.so.11.2", "")
    return {"_ECHO_PTX_PATH": os.pathsep.join(map(str, folders)), "_ECHO_NVRTC": str(nvrtc)}


def set_places(library: ctypes.CDLL, ptx: str, nvrtc: str) -> None:
    """Has a library look for PTX and NVRTC there.

    Raises:
        NativeError: the library does not have the function.
    """
    function(library, "echo_cuda_places", None, ctypes.c_char_p, ctypes.c_char_p)(os.fsencode(ptx), os.fsencode(nvrtc))


def level() -> str:
    """The instructions that the CPU kernels use here: "avx512", "avx2" or "portable".

    Raises:
        NativeError: the library is missing or damaged.
    """
    name: bytes = function(kernels_library(), "echo_kernels_level", ctypes.c_char_p)()
    return name.decode()


def why_not_on_cuda(device: int) -> str:
    """Why kernels do not run on a CUDA device, such as a driver that is too old; empty where they do.

    Loads the smallest of them there, and launches it. An installation without PTX compiles each family of kernels when
    it is first launched, which takes seconds, and keeps it in the cache.

    Raises:
        NativeError: the library is missing or damaged.
    """
    ready = function(kernels_library(), "echo_cuda_ready", ctypes.c_int, ctypes.c_int)
    return str(_error()) if ready(device) else ""


def _error() -> KernelError:
    return KernelError(function(kernels_library(), "echo_kernels_error", ctypes.c_char_p)().decode())
