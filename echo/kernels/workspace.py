"""The workspace of an operator ``_echo_NAME`` before it runs, which planning counts."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Mapping, Sequence

from echo.errors import KernelError
from echo.kernels.library import DTYPES, kernels_library
from echo.native.loading import function

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
        raise KernelError(function(kernels_library(), "echo_kernels_error", ctypes.c_char_p)().decode())
    return needed


def _texts(texts: Any) -> Any:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


@functools.lru_cache(maxsize=None)
def _function() -> Any:
    texts, shapes = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))
    arguments = (ctypes.c_char_p, texts, texts, ctypes.c_int, shapes, ctypes.POINTER(ctypes.c_int), *[ctypes.c_int] * 3)
    return function(kernels_library(), "echo_operator_workspace", ctypes.c_size_t, *arguments)
