"""The fused kernels, loaded into MXNet as its extension library."""

from __future__ import annotations

import ctypes
import functools
import logging

import mxnet as mx
from mxnet.base import _LIB, c_str, check_call

from echo.errors import NativeError
from echo.ir.graph import PREFIX, READS
from echo.kernels import library

logger = logging.getLogger("echo")


@functools.lru_cache(maxsize=None)
def why_not_on(ctx: mx.Context) -> str:
    """Why the operators, once loaded, do not run on this device, or an empty text.

    What is wrong with a GPU, such as an old driver, shows here, with one warning for each device, and not in the first
    operator that runs there.
    """
    wrong = library.why_not_on_cuda(ctx.device_id) if ctx.device_type == "gpu" else ""
    if not wrong:
        return ""
    reason = f"the kernels do not run on {ctx}: {wrong}"
    logger.warning("echo: no operator is fused: %s", reason)
    return reason


@functools.lru_cache(maxsize=None)
def why_not() -> str:
    """Loads the operators ``_echo_*`` into MXNet, once a process; why that fails, or an empty text.

    ``mx.library.load`` would also make Python functions for them, and a line of output.
    """
    try:
        path = library.kernels_library()._name
    except NativeError as error:
        return str(error)
    try:
        check_call(_LIB.MXLoadLib(c_str(str(path)), mx.base.mx_uint(0)))
    except mx.MXNetError as error:
        return f"MXNet does not load {path}: {str(error).strip().splitlines()[-1]}"
    missing = [name for name in sorted(READS) if not _is_there(PREFIX + name)]
    if missing:
        return f"{path} is of another echo, reinstall mxnet-echo: it has no kernel {missing[0]!r}"
    logger.info("echo: fused operators on the CPU use %s instructions", library.level())
    return ""


def loaded_from() -> str:
    """The file that the operators were loaded from, empty where they are not there."""
    is_loaded = why_not.cache_info().currsize and not why_not()
    return str(library.kernels_library()._name) if is_loaded else ""


def _is_there(op: str) -> bool:
    return bool(_LIB.NNGetOpHandle(c_str(op), ctypes.byref(ctypes.c_void_p())) == 0)
