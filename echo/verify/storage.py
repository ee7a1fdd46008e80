"""Differences between two graphs; and whether the planned one holds more of MXNet's storage at any moment of a step."""

from __future__ import annotations

import ctypes
import functools
import os
import time
from dataclasses import dataclass
from typing import Any, Callable

import mxnet as mx
import numpy as np

from echo import native
from echo.errors import EchoError, NativeError, one_line
from echo.native import function
from echo.plans.decisions import HIDDEN
from echo.plans.plan import Plan
from echo.system.terminal import size_text

Array = Any  # of numpy
STORAGE = "storage"  # the name of a difference in bytes

# MXNet's storage, which the memory counter of its profiler shows, is arrays and all that operators allocate as they
# run. The counter does not see the bytes that oneDNN's RNN operator keeps by itself. A plan that fuses such an
# operator keeps them in arrays, so the bytes that it knows of (`echo.plans.decisions.HIDDEN`) are added to the user's
# side.

TOLERANCE = 1.01  # times the bytes of the original graph
# Which operators the engine's threads run at once differs from run to run, and in a small graph every array is more
# than 1 %: differences below this are not counted.
LEAST = 2**20
_AGAIN = 2  # times that a graph that seems to hold more is run again: other threads of the user's allocate, too
_ROUNDS, _MOST_ROUNDS = 3, 1000


@dataclass(frozen=True)
class Difference:
    """An array that the plan's graph (``echo``) and the user's (``own``) compute differently.

    ``off`` is the largest difference, as a part of the largest element. Of the storage that both graphs hold, ``own``
    and ``echo`` are the bytes.
    """

    name: str
    off: float
    own: Array
    echo: Array

    def __str__(self) -> str:
        if self.name == STORAGE:
            return f"{self.name}: {size_text(int(self.own))} became {size_text(int(self.echo))}"
        if self.own.shape != self.echo.shape or self.own.dtype != self.echo.dtype:
            return f"{self.name}: {self.own.dtype}{self.own.shape} became {self.echo.dtype}{self.echo.shape}"
        return f"{self.name} by {self.off:.1e} of its largest element"


def growth(
    original: Callable[[], Any], planned: Callable[[], Any], ctx: mx.Context, hidden: int | None
) -> tuple[Difference | None, str]:
    """Returns by how much a planned graph holds more storage in a step than the original one, and a text for the log.

    ``original`` and ``planned`` run a step, and allocate and free all that it holds. ``hidden`` are the bytes that the
    user's operators hold outside MXNet's storage; if it is None, they are unknown, and nothing is compared.
    """
    if hidden is None:
        return None, "storage was not compared"
    try:
        original_bytes, plan_bytes = peak_storage(original, ctx)[0], peak_storage(planned, ctx)[0]
        for _ in range(_AGAIN):
            if grows(original_bytes + hidden, plan_bytes):
                original_bytes = max(original_bytes, peak_storage(original, ctx)[0])
                plan_bytes = min(plan_bytes, peak_storage(planned, ctx)[0])
    except (NativeError, mx.MXNetError) as error:
        return None, f"storage was not compared: {one_line(error)}"
    original_bytes += hidden
    told = f"peak of MXNet's storage in a step: {size_text(plan_bytes)}, without echo {size_text(original_bytes)}"
    if not grows(original_bytes, plan_bytes):
        return None, told
    return Difference(STORAGE, plan_bytes / original_bytes - 1, np.array(original_bytes), np.array(plan_bytes)), told


def grows(original_bytes: int, plan_bytes: int) -> bool:
    """Whether a plan's graph holds more than the tolerance allows."""
    return plan_bytes > TOLERANCE * original_bytes and plan_bytes > original_bytes + LEAST


def peak_storage(run: Callable[[], Any], ctx: mx.Context) -> tuple[int, Any]:
    """The most bytes of MXNet's storage that a run holds at once on a device, and the run's result.

    Arrays that outlive the run, such as its result, are not counted; nor are temporary spaces, which all graphs share.

    Raises:
        NativeError: this MXNet's storage cannot be counted, or is being counted already.
    """
    if counting_blocker():
        raise NativeError(counting_blocker())
    library = native.hook_library()
    begin = function(library, "echo_held_begin", ctypes.c_int, ctypes.c_int32, ctypes.c_int32)
    alive = function(library, "echo_held_alive", ctypes.c_size_t)
    end = function(library, "echo_held_end", ctypes.c_int64)
    scratch = mx.nd.zeros(1, ctx)
    mx.nd.waitall()
    if begin(ctx.device_typeid, ctx.device_id):
        raise NativeError("another counter of MXNet's storage is active")
    try:
        result = run()
        _wait_for_all_to_be_freed(alive, scratch)
    finally:
        most = int(end())
    return most, result


def _wait_for_all_to_be_freed(alive: Callable[[], int], scratch: mx.nd.NDArray) -> None:
    """Waits until engine threads have freed the arrays that they ran on, which ``waitall`` does not wait for.

    A thread frees them when it takes another operator, as one on ``scratch``. The freed arrays may hold other blocks.
    """
    rounds = same = 0
    while same < _ROUNDS and rounds < _MOST_ROUNDS:
        before = alive()
        scratch += 1
        mx.nd.waitall()
        time.sleep(0.001)
        rounds, same = rounds + 1, same + 1 if alive() == before else 0


def beside_storage(plan: Plan | None, ctx: mx.Context) -> int | None:
    """Bytes that the user's operators hold outside of MXNet's storage, as far as a plan knows; None without a plan.

    That is what oneDNN keeps of RNN operators on a CPU; cuDNN and MXNet's own RNN keep it in MXNet's storage.
    """
    if plan is None:
        return None
    by_onednn = ctx.device_type == "cpu" and os.environ.get("MXNET_USE_MKLDNN_RNN", "1") != "0"
    return plan.before.static.get(HIDDEN, 0) if by_onednn else 0


@functools.lru_cache(maxsize=None)
def counting_blocker() -> str:
    """Why storage cannot be counted here; empty where it can, which is tried once."""
    try:
        install = function(native.hook_library(), "echo_held_install", ctypes.c_int, ctypes.c_char_p)
        if install(mx.libinfo.find_lib_path()[0].encode()):
            return "MXNet's storage is not where it is expected"
    except EchoError as error:
        return str(error)
    return ""
