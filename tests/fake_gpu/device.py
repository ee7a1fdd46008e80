"""The fake CUDA device of this process, as tests see it (`core.h`)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
from typing import Iterator

import mxnet as mx


@functools.lru_cache(maxsize=None)
def _core() -> ctypes.CDLL:
    core = ctypes.CDLL("libfakecuda_core.so")
    core.fake_count.restype, core.fake_count.argtypes = ctypes.c_long, (ctypes.c_char_p,)
    core.fake_used.restype = core.fake_peak.restype = ctypes.c_size_t
    core.fake_complaints.restype = ctypes.c_char_p
    return core


def is_there() -> bool:
    """Whether this process runs on the fake device."""
    try:
        _core()
    except OSError:
        return False
    return True


def count(name: str) -> int:
    """How often functions or kernels with this text in their names were called or launched since `reset`."""
    return int(_core().fake_count(name.encode()))


def used() -> int:
    """The bytes that are allocated on all devices now."""
    return int(_core().fake_used())


def idle(*contexts: mx.Context) -> int:
    """The bytes that are left on the devices when nothing runs there, and MXNet's pools of these are empty."""
    for context in contexts:
        mx.nd.ones((1,), ctx=context).wait_to_read()  # a pool that never gave anything is none
    gc.collect()  # blocks are cycles
    mx.nd.waitall()
    for context in contexts:
        context.empty_cache()
    return used()


def peak() -> int:
    """The most bytes that were allocated at once since `reset`."""
    return int(_core().fake_peak())


def reset() -> None:
    """Forgets counts, complaints and the peak."""
    _core().fake_reset()


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Launches do nothing in this context but check their arguments: emulated kernels take minutes on large models."""
    _core().fake_emulate(0)
    try:
        yield
    finally:
        _core().fake_emulate(1)


def complaints() -> list[str]:
    """Calls that a real device would have refused: copies beyond a block, wrong geometries, addresses of the host."""
    return list(_core().fake_complaints().decode().splitlines())
