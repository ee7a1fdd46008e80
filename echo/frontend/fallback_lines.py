"""MXNet's lines "Storage type fallback detected", which it writes once for each operator with its attributes.

With ``MXNET_MKLDNN_ENABLED=0`` it writes them for every operator that oneDNN has: not for graphs that echo binds to
learn from them, nor for the attributes of nodes that echo marks. What MXNet writes of the user's own graph stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any, Callable, Iterator

from mxnet.base import _LIB

from echo.ir.op_spec import means_true
from echo.system.threads import Lock

_OF = "ZN5mxnet6common18LogStorageFallbackERKN4nnvm9NodeAttrsEiPKSt6vectorIiSaIiEES9_E3log"
_VARIABLE, _ONEDNN = "MXNET_STORAGE_FALLBACK_LOG_VERBOSE", "MXNET_MKLDNN_ENABLED"
_lock = Lock()
_depth: list[bool] = []  # of open contexts, of all threads
_backward: list[bool] = []  # one item once a planned CachedOp has run


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """While this is open, MXNet writes none of these lines; what other threads bind meanwhile has them later."""
    with _lock.held():
        flag = _flag()
        _depth.append(True)
        if flag is not None:
            flag.value = False
    try:
        yield
    finally:
        with _lock.held():
            _depth.pop()
            if flag is not None and not _depth:
                flag.value = _wanted()


@contextlib.contextmanager
def of_user(bind_own: Callable[[], object]) -> Iterator[None]:
    """While this is open, a planned graph is bound without such lines; before, ``bind_own`` has MXNet write the user's.

    Only without oneDNN: otherwise few operators have a line, and none of those that echo marks.
    """
    if not are_written():
        yield
        return
    bind_own()
    with unlogged():
        yield


def are_written() -> bool:
    """Whether MXNet writes such lines of operators that echo marks."""
    return _wanted() and not means_true(os.environ.get(_ONEDNN) or "1")


def quiet_backward() -> None:
    """Has `in_backward` open `unlogged` from now on: CachedOps infer the storage of their gradients in backward."""
    _backward[:] = [True]


@contextlib.contextmanager
def in_backward() -> Iterator[None]:
    """To be open during a backward pass of Gluon: after `quiet_backward`, MXNet writes none of these lines."""
    with unlogged() if _backward else contextlib.nullcontext():
        yield


def _wanted() -> bool:
    return (os.environ.get(_VARIABLE) or "1").lower() not in ("0", "false")


def _flag() -> Any:
    """Returns what MXNet made of the variable when it first asked for it; None if another build hides it."""
    try:
        guard, flag = (ctypes.c_bool.in_dll(_LIB, name) for name in (f"_ZGV{_OF}", f"_Z{_OF}"))
    except ValueError:
        return None
    if not guard.value:  # it did not ask yet
        flag.value, guard.value = _wanted(), True
    return flag
