"""The spaces from which MXNet's operators draw memory while they run (``src/resource.cc`` of MXNet)."""

from __future__ import annotations

import ctypes
import os
import threading

import mxnet.libinfo

from echo.frontend.environment import changed_variable
from echo.ir.training_graph import EXECUTOR, SHAPED

_VARIABLES = {"cpu": ("MXNET_CPU_TEMP_COPY", 4), "gpu": ("MXNET_GPU_TEMP_COPY", 1)}
_WORKERS = "MXNET_CPU_WORKER_NTHREADS"
_MANAGER = "_ZN5mxnet15ResourceManager3GetEv"  # mxnet::ResourceManager::Get(), which makes that of the thread
_THREAD = threading.local()  # has `one` in a thread whose operators draw from one space


def share_one_space() -> bool:
    """Has the CPU operators of the calling thread draw from one space, and returns whether they do.

    MXNet makes four for each thread, and each grows to the largest request: of convolutions, which ask for twice the
    maps that they bring into another layout, 390 MB more for ResNet-18 at batch 64 and 128 x 128 pixels. Operators that
    draw run one after the other anyway, unless the user has more than one worker. This has to come before the thread's
    first operator; random numbers stay the same. A number that the user set stays.
    """
    variable, _ = _VARIABLES["cpu"]
    make = getattr(ctypes.CDLL(mxnet.libinfo.find_lib_path()[0]), _MANAGER, None)
    if os.environ.get(variable) or os.environ.get(_WORKERS, "1") != "1" or make is None:
        return False
    make.restype = ctypes.c_void_p
    with changed_variable(variable, "1"):
        make()
    _THREAD.one = True
    return True


def spaces(device: str, runner: str) -> int:
    """From how many spaces the operators of one graph draw.

    MXNet has some for each device and hands them out in turn: one to an executor, for all of its operators, and one to
    each pass of a CachedOp whose operators live on; otherwise every operator that a CachedOp runs gets the next.
    """
    variable, default = _VARIABLES[device]
    if device == "cpu" and getattr(_THREAD, "one", False):
        return 1
    text = os.environ.get(variable, "")
    return _handed_out(int(text) if text.isdigit() and int(text) else default, runner)


def other_spaces(device: str, runner: str) -> dict[str, str]:
    """The variable and the number of spaces where that is not MXNet's default, as a setting of plans."""
    variable, default = _VARIABLES[device]
    copies = spaces(device, runner)
    return {} if copies == _handed_out(default, runner) else {variable: str(copies)}


def _handed_out(copies: int, runner: str) -> int:
    if runner == EXECUTOR:
        return 1
    return min(copies, 2) if runner == SHAPED else copies
