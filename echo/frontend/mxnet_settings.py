"""MXNet's settings: the variables that it reads, and what they mean for a graph."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from typing import Any, Callable, ContextManager, Iterator, Sequence

import mxnet as mx
import mxnet.libinfo
from mxnet.base import _LIB

from echo import native
from echo.frontend.symbols import Binding
from echo.ir.graph import Setting
from echo.ir.op_spec import means_true
from echo.ir.training_graph import MemoryPool, Runner
from echo.system.threads import Lock, own_binds

# Variables that MXNet reads from the environment at each bind, changed for a while.
#
# Threads share the environment, so one of them at a time changes it.

_lock = Lock()
_changed: list[tuple[str, str | None]] = []  # a variable and its value before, while a thread has changed it


@contextlib.contextmanager
def changed_variable(name: str, value: str) -> Iterator[None]:
    """While this is open, an environment variable has this value; other threads that would change one wait."""
    with _lock.held():
        before = os.environ.get(name)
        _changed.append((name, before))
        os.environ[name] = value
        try:
            yield
        finally:
            _restore(name, before)
            _changed.pop()


def _restore(name: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before


def _restore_in_child() -> None:
    """The thread that changed the environment and would change it back may not be there."""
    for name, before in reversed(_changed):
        _restore(name, before)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)


# The match range of MXNet's memory planner, which it reads from the environment at each bind.

MATCH_RANGE_VARIABLE = "NNVM_EXEC_MATCH_RANGE"


def match_range(value: int | None) -> ContextManager[None]:
    """Binds made while this is open use this match range of MXNet's memory planner (None: leave it as it is)."""
    return contextlib.nullcontext() if value is None else changed_variable(MATCH_RANGE_VARIABLE, str(value))


def default_match_range() -> int:
    """The match range that MXNet would use by itself."""
    text = os.environ.get(MATCH_RANGE_VARIABLE, "16")
    return int(text) if text.isdigit() else 16


# MXNet's fusion of pointwise operators (``MXNET_USE_FUSION``), which its CUDA builds do on GPUs unless told
# otherwise.
#
# It happens after the gradient pass: what is inside of a fused operator is no node of the training graph any more,
# so nothing of it can be recomputed alone, and a clone might be computed in another group than its original, with
# products and sums in one instruction. So graphs that echo planned are bound without it, and compared with the
# original graph with it.

FUSION_VARIABLE = "MXNET_USE_FUSION"


def fuses(ctx: mx.Context) -> bool:
    """Whether MXNet fuses pointwise operators in what the user binds on this device."""
    wanted = means_true(os.environ.get(FUSION_VARIABLE) or "1")  # MXNet takes an empty text for none
    return wanted and ctx.device_type == "gpu" and bool(mx.runtime.Features().is_enabled("CUDA_RTC"))


def unfused(ctx: mx.Context) -> ContextManager[None]:
    """While this is open, the calling thread's binds on this device leave pointwise operators as they are."""
    return native.unfused() if ctx.device_type == "gpu" else contextlib.nullcontext()


# The workspace slots from which MXNet's operators draw memory while they run (``src/resource.cc`` of MXNet).

_VARIABLES = {"cpu": ("MXNET_CPU_TEMP_COPY", 4), "gpu": ("MXNET_GPU_TEMP_COPY", 1)}
_WORKERS = "MXNET_CPU_WORKER_NTHREADS"
_MANAGER = "_ZN5mxnet15ResourceManager3GetEv"  # mxnet::ResourceManager::Get(), which makes that of the thread
_THREAD = threading.local()  # has `one` in a thread whose operators draw from one slot


def is_deterministic() -> bool:
    """Whether the user has MXNet take deterministic algorithms alone, of cuDNN's too."""
    return means_true(os.environ.get("MXNET_ENFORCE_DETERMINISM") or "0")


def share_one_slot() -> bool:
    """Has the CPU operators of the calling thread draw from one slot, and returns whether they do.

    MXNet makes four for each thread, and each grows to the largest request: of convolutions, which ask for twice the
    feature maps that they bring into another layout, 390 MB more for ResNet-18 at batch 64 and 128 x 128 pixels.
    Operators that draw run one after the other anyway, unless the user has more than one worker. This has to come
    before the thread's first operator; random numbers stay the same. A number that the user set stays.
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


def workspace_slots(device: str, runner: Runner) -> int:
    """Number of workspace slots shared by the operators of one graph.

    MXNet has some for each device and hands them out in turn: one to an executor, for all of its operators, and one to
    each pass of a CachedOp whose operators live on; otherwise every operator that a CachedOp runs gets the next.
    """
    variable, default = _VARIABLES[device]
    if device == "cpu" and getattr(_THREAD, "one", False):
        return 1
    text = os.environ.get(variable, "")
    return _handed_out(int(text) if text.isdigit() and int(text) else default, runner)


def changed_workspace_slots(device: str, runner: Runner) -> dict[str, str]:
    """The variable and the number of workspace slots if that is not MXNet's default, as a setting of plans."""
    variable, default = _VARIABLES[device]
    copies = workspace_slots(device, runner)
    return {} if copies == _handed_out(default, runner) else {variable: str(copies)}


def _handed_out(copies: int, runner: Runner) -> int:
    if runner == Runner.EXECUTOR:
        return 1
    return min(copies, 2) if runner == Runner.SHAPED else copies


# The setting of a bind, as the patterns of fused operators read it (`echo.ir.graph`).

COPIES_VARIABLE = "MXNET_CPU_PARALLEL_RAND_COPY"  # of MXNet's generators on the CPU, used in turns
RNN_VARIABLES = ("MXNET_MKLDNN_ENABLED", "MXNET_USE_MKLDNN_RNN")


def setting_of(names: Sequence[str], binding: Binding, device: str) -> Setting:
    """The setting of a bind with arguments of these names on a kind of device."""
    untrained = frozenset(name for name, request in zip(names, binding.grad_req) if request == "null")
    on_cpu = device == "cpu"
    return Setting(untrained, on_cpu and _draws_as_mxnet(), on_cpu and _has_onednn_rnn())


def has_one_generator() -> bool:
    """Whether one generator draws all of MXNet's numbers on the CPU."""
    return os.environ.get(COPIES_VARIABLE, "1") == "1"


def _draws_as_mxnet() -> bool:
    """Whether kernels can go on from the states of MXNet's generator, which is not MKL's."""
    return has_one_generator() and not mx.runtime.Features().is_enabled("BLAS_MKL")


def _has_onednn_rnn() -> bool:
    """Whether oneDNN runs RNN operators of float32: that of MXNet 1.9.1 never reads their ``p``."""
    chosen = all((os.environ.get(name) or "1") == "1" for name in RNN_VARIABLES)
    return chosen and bool(mx.runtime.Features().is_enabled("MKLDNN"))


# The pool from which MXNet allocates on a GPU (``src/storage/pooled_storage_manager.h`` of MXNet 1.9.1).
#
# A bind, or a CachedOp with ``static_alloc``, allocates what it plans once. A CachedOp without allocates as it runs,
# and so holds what the pool keeps for it.

_TYPE, _PAGE = "MXNET_GPU_MEM_POOL_TYPE", "MXNET_GPU_MEM_POOL_PAGE_SIZE"
_ENGINE = "MXNET_ENGINE_TYPE"
_COARSE, _CUTOFF = "MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE", "MXNET_GPU_MEM_POOL_ROUND_LINEAR_CUTOFF"


# MXNet's threads free an array a moment after its last reader has run. With so many nodes between, the fake device sees
# 0.9 to 1.1 of what is planned of ResNet-18 v2, MobileNet v2, LSTM cells and a perceptron; with none, 0.8 to 0.95.
_REUSE_DELAY = 3


def pool(device: str, runner: Runner) -> MemoryPool | None:
    """The pool that a graph with this runner allocates from as it runs; None where nothing keeps what is freed."""
    kind = os.environ.get(_TYPE) or "Naive"
    if device != "gpu" or runner != Runner.DYNAMIC or kind == "Unpooled":
        return None
    page = max(_number(_PAGE, 4096), 1)
    delay = 0 if os.environ.get(_ENGINE) == "NaiveEngine" else _REUSE_DELAY
    if kind == "Round":
        return MemoryPool(page, 1 << min(max(_number(_CUTOFF, 24), 0), 62), powers=True, reuse_delay=delay)
    coarse = _number(_COARSE, 2 << 20)  # a negative one is larger than any array, to MXNet
    return MemoryPool(page, coarse if coarse > 0 else 1 << 62, powers=False, reuse_delay=delay)


def pool_settings(device: str, runner: Runner) -> dict[str, str]:
    """The variables by which the pool is not MXNet's default, as settings of plans."""
    if device != "gpu" or runner != Runner.DYNAMIC:
        return {}
    return {name: os.environ[name] for name in (_TYPE, _PAGE, _COARSE, _CUTOFF, _ENGINE) if os.environ.get(name)}


def _number(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable, "")) or default
    except ValueError:
        return default  # MXNet says what is wrong


# MXNet's line "Subgraph backend MKLDNN is activated.", which it writes at every bind: not at those of echo's own.

VARIABLE = "MXNET_SUBGRAPH_VERBOSE"


@functools.lru_cache(maxsize=None)
def silenced() -> bool:
    """Has ``bind`` leave the line out from now on; whether that was done.

    MXNet reads the variable once a process, at the first ``bind``, so this binds something tiny. What the user has set
    stays; a program that was the first to bind keeps the line, too. ``simple_bind`` reads the variable for itself.
    """
    if VARIABLE in os.environ:
        return False
    with changed_variable(VARIABLE, "0"), own_binds():
        mx.sym.Symbol.bind(mx.sym.var("data") + 0, mx.cpu(), [mx.nd.zeros((1,), mx.cpu())])
    return True


# MXNet's lines "Storage type fallback detected", which it writes once for each operator with its attributes.
#
# With ``MXNET_MKLDNN_ENABLED=0`` it writes them for every operator that oneDNN has: not for graphs that echo binds to
# learn from them, nor for the attributes of nodes that echo marks. What MXNet writes of the original graph stays.

_OF = "ZN5mxnet6common18LogStorageFallbackERKN4nnvm9NodeAttrsEiPKSt6vectorIiSaIiEES9_E3log"
_VARIABLE, _ONEDNN = "MXNET_STORAGE_FALLBACK_LOG_VERBOSE", "MXNET_MKLDNN_ENABLED"
_lines_lock = Lock()
_depth: list[bool] = []  # of open contexts, of all threads
_backward: list[bool] = []  # one item once a planned CachedOp has run


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """While this is open, MXNet writes none of these lines; what other threads bind meanwhile has them later."""
    with _lines_lock.held():
        flag = _flag()
        _depth.append(True)
        if flag is not None:
            flag.value = False
    try:
        yield
    finally:
        with _lines_lock.held():
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
