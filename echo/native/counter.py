"""Counts the blocks that MXNet and oneDNN allocate, in a process that has a library for it preloaded.

oneDNN's own blocks, such as its scratch memory or what an RNN operator keeps for its gradient, lie alongside MXNet's
storage, and alongside every figure that MXNet gives. Both come from ``posix_memalign``, which ``libecho_counter.so``
counts where it is preloaded.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Mapping

from echo import native
from echo.errors import NativeError

_NAME = "libecho_counter.so"
_VARIABLE = "LD_PRELOAD"


def preloaded(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variable with which a child process counts, instead of that of ``environment``.

    Raises:
        NativeError: the library was not built.
    """
    for folder in native.__path__:
        if (Path(folder) / _NAME).is_file():
            before = (os.environ if environment is None else environment).get(_VARIABLE, "")
            return {_VARIABLE: ":".join(filter(None, (str(Path(folder) / _NAME), before)))}
    raise NativeError(f"{_NAME} was not built: echo was installed without a C++ compiler, or not on Linux")


def counting() -> bool:
    """Whether this process has the library preloaded."""
    return hasattr(ctypes.CDLL(None), "echo_allocated_now")


def now() -> int:
    """The bytes that are allocated.

    Raises:
        NativeError: this process does not count.
    """
    return _ask("echo_allocated_now")


def peak() -> int:
    """The most bytes that were allocated at once, since `reset` where that was called; raises what `now` does."""
    return _ask("echo_allocated_peak")


def written_peak() -> int:
    """The most bytes that were written to at once, since `reset` where that was called; raises what `now` does.

    Pages of 4,096 bytes in a block to which nothing writes before it is freed, or until now, take no memory.
    """
    return _ask("echo_written_peak")


def reset() -> None:
    """Counts `peak` and `written_peak` again, from the blocks that are allocated now; raises what `now` does."""
    _ask("echo_allocated_reset", None)


def _ask(name: str, result: type[ctypes.c_int64] | None = ctypes.c_int64) -> int:
    if not counting():
        raise NativeError(f"expected {_NAME} to be preloaded, see echo.native.counter.preloaded()")
    asked = getattr(ctypes.CDLL(None), name)
    asked.restype = result
    return int(asked() or 0)
