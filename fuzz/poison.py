"""A test mode: memory is overwritten the moment the memory plan has no more reader for it.

Whatever reads an array after its last reader, by an address that it kept or through a mark that does not fit its
graph, then computes NaN instead of something that looks right. It applies to everything that MXNet runs while it is
on, with a plan of echo's or without, to the chunks of executors and of CachedOps; memory of the user's, sparse arrays
and what operators keep inside themselves are left alone.

MXNet's own monitors say which node was handed to the engine, and give the array that it writes. `poison_library` wrote
the memory plan down, from which follows after which node a chunk has no more readers. The write goes through the
engine, after the last reader, and changes only bytes: whether oneDNN keeps an array in a layout of its own stays as it
is. With ``static_shape`` CachedOps show no node to a monitor, so it is off meanwhile (``static_alloc`` is not).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
from typing import Any, Callable, Iterator

from mxnet import autograd
from mxnet.base import _LIB, check_call

from echo import native
from echo.errors import NativeError
from echo.ir.op_spec import means_true
from echo.system.threads import Lock, PerThread
from fuzz import poison_library
from fuzz.dead_chunks import TALLY, Pass, Plan, lost

_lock = Lock()
_originals: dict[str, Callable[..., int]] = {}  # MXNet's functions, once others stand in for them
_is_on = False
_executors: dict[int, _Executor] = {}
_cached: dict[int, _CachedOp] = {}
_TOKEN: PerThread[_Token | None] = PerThread(None)


class _Executor:
    """The watch over one executor."""

    _callback_type = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)

    def __init__(self, handle: int, text: str) -> None:
        self._text = text  # read when it first runs: most executors of a planning never do
        self._pass: Pass | None = None
        self._callback = self._callback_type(self._see)
        check_call(_originals["MXExecutorSetMonitorCallbackEX"](ctypes.c_void_p(handle), self._callback, None, 0))

    def _see(self, name: bytes, array: int, _: Any) -> None:
        if not _is_on:
            check_call(_LIB.MXNDArrayFree(ctypes.c_void_p(array)))
            return
        if self._pass is None:
            self._pass = Pass(Plan(json.loads(self._text)[-1], adds_in_place=True, listed=False))
        label = name.decode("utf-8", "surrogateescape")
        if label in self._pass.plan.labels:
            self._pass.see(label, array)
        else:
            lost(array, label)

    def begin(self) -> None:
        """A forward pass begins."""
        if self._pass is not None:
            self._pass.overwrite_all()
            self._pass.position = (-1, 0)

    def forget(self) -> None:
        """The executor is freed, or watched by the user's monitor."""
        if self._pass is not None:
            self._pass.forget()


class _CachedOp:
    """The watch over one CachedOp: a plan for each way in which it runs forward, and one for each way back."""

    _callback_type = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)

    def __init__(self, handle: int, static: bool) -> None:
        self._static = static
        self._forward: dict[Any, Pass] = {}
        self._backward: dict[Any, Pass] = {}
        self._token: Any = None
        self._current: Pass | None = None
        self._callback = self._callback_type(self._see)
        check_call(_originals["MXCachedOpRegisterOpHook"](ctypes.c_void_p(handle), self._callback, 0))

    def _see(self, name: bytes, _: bytes, array: int, __: Any) -> None:
        if not _is_on:
            check_call(_LIB.MXNDArrayFree(ctypes.c_void_p(array)))
            return
        label = name.decode("utf-8", "surrogateescape")
        token = _TOKEN.value or _Token(backward=False)
        if token is not self._token or self._current is None or self._current.begins_again(label) is not False:
            self._token, self._current = token, self._entered(label, token, array)
        if self._current is None:
            lost(array, label)
        else:
            self._current.see(label, array)

    def _entered(self, label: str, token: _Token, array: int) -> Pass | None:
        """The pass that begins with this output."""
        passes = self._backward if token.backward else self._forward
        key = (token.recording, _device(array))
        for value in json.loads(poison_library.recorded()):
            if bool(value["first"]) == token.backward and self._fits(value, token, label, key):
                if key in passes:
                    passes[key].forget()
                passes[key] = Pass(Plan(value, self._static, listed=True))
                break
        entered = passes.get(key)
        if entered is None or label not in entered.plan.labels:
            return None
        entered.forget()  # without static_alloc each pass has memory of its own
        entered.position = (-1, 0)
        return entered

    def begin(self) -> None:
        """A forward pass begins."""
        for followed in self._forward.values() if self._static else ():
            followed.overwrite_all()

    def _fits(self, value: dict[str, Any], token: _Token, label: str, key: Any) -> bool:
        """Whether a plan is this CachedOp's own, not that of a loop inside of it."""
        if not token.backward:
            return True
        forward = self._forward.get((True, key[1]))
        if forward is None or len(forward.plan.nodes) != value["first"]:
            return False
        names = [node and node[0] for node in value["nodes"][: value["first"]]]
        return names == [node and node[0] for node in forward.plan.nodes]

    def forget(self) -> None:
        """The CachedOp is freed, or watched by the user's monitor."""
        for followed in (*self._forward.values(), *self._backward.values()):
            followed.forget()


class _Token:
    """One call into MXNet that runs CachedOps."""

    def __init__(self, backward: bool) -> None:
        self.backward = backward
        self.recording = True if backward else autograd.is_recording()


def _device(array: int) -> int:
    device_type, number = ctypes.c_int(), ctypes.c_int()
    check_call(_LIB.MXNDArrayGetContext(ctypes.c_void_p(array), ctypes.byref(device_type), ctypes.byref(number)))
    return number.value


# Replacements of MXNet's functions ---------------------------------------------------------------------------------


def _bind(original: Callable[..., int], *args: Any) -> int:
    poison_library.recorded()
    status = original(*args)
    text = poison_library.recorded()
    handle = args[-1]._obj.value
    if not status and text != "[]":
        _executors[handle] = _Executor(handle, text)
    return status


def _forward(original: Callable[..., int], handle: Any, *args: Any) -> int:
    if handle.value in _executors:
        _executors[handle.value].begin()
    return original(handle, *args)


def _create(
    original: Callable[..., int], symbol: Any, count: int, keys: Any, values: Any, handle: Any, *rest: Any
) -> int:
    position_of = {keys[number]: number for number in range(count)}
    if b"static_shape" in position_of:
        values[position_of[b"static_shape"]] = b"False"
    static = b"static_alloc" in position_of and means_true(values[position_of[b"static_alloc"]].decode())
    status = original(symbol, count, keys, values, handle, *rest)
    if not status:
        _cached[handle._obj.value] = _CachedOp(handle._obj.value, static)
    return status


def _invoke(original: Callable[..., int], handle: Any, *args: Any) -> int:
    if handle.value in _cached:
        _cached[handle.value].begin()
    return _with_token(original, _Token(backward=False), handle, *args)


def _backward(original: Callable[..., int], *args: Any) -> int:
    return _with_token(original, _Token(backward=True), *args)


def _with_token(original: Callable[..., int], token: _Token, *args: Any) -> int:
    with _TOKEN.set_to(token):
        poison_library.recorded()
        return original(*args)


def _unwatched(original: Callable[..., int], handle: Any, *args: Any) -> int:
    """Ends the watch over what is freed, or gets the user's own monitor: MXNet has room for one."""
    status = original(handle, *args)
    for watches in (_executors, _cached):
        if handle is not None and handle.value in watches:  # none is there once it is freed
            watches.pop(handle.value).forget()
    return status


_WRAPPERS: dict[str, Callable[..., int]] = {
    "MXExecutorBindEX": _bind,
    "MXExecutorSimpleBindEx": _bind,
    "MXExecutorSimpleBindEx64": _bind,
    "MXExecutorReshapeEx": _bind,
    "MXExecutorForward": _forward,
    "MXExecutorFree": _unwatched,
    "MXExecutorSetMonitorCallbackEX": _unwatched,
    "MXCreateCachedOpEx": _create,
    "MXCachedOpRegisterOpHook": _unwatched,
    "MXFreeCachedOp": _unwatched,
    "MXInvokeCachedOpEx": _invoke,
    "MXAutogradBackwardEx": _backward,
}


def _wrapped(wrapper: Callable[..., int], original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original, assigned=())
    def call(*args: Any) -> int:
        return wrapper(original, *args) if _is_on or wrapper is _unwatched else original(*args)

    return call


def start() -> None:
    """From now on memory is overwritten, in graphs that are bound from now on. The hook has to be installed.

    The wrappers of MXNet's functions stay for good: others may have wrapped them by the time that this ends.

    Raises:
        NativeError: the hook is not installed, or the library cannot be compiled.
    """
    global _is_on
    if not native.installed():  # installed later it would plan after the plan was written down
        raise NativeError("poison needs the hook: call echo.frontend.install.install_hook first")
    with _lock.held():
        poison_library.start()
        for name, wrapper in () if _originals else _WRAPPERS.items():
            _originals[name] = getattr(_LIB, name)
            setattr(_LIB, name, _wrapped(wrapper, _originals[name]))
        _is_on = True


def stop() -> None:
    """Nothing is overwritten any more."""
    global _is_on
    with _lock.held():
        _is_on = False
        poison_library.stop()


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Executors bound and CachedOps made while this is open run on memory that is overwritten when it is dead.

    Raises:
        NativeError: the hook is not installed, a pass could not be followed, or a node read an output that is not
            there.
    """
    before = len(TALLY.faults)
    start()
    try:
        yield
    finally:
        stop()
    if len(TALLY.faults) > before:
        raise NativeError(f"{len(TALLY.faults) - before} faults of memory plans, the first: {TALLY.faults[before]}")
