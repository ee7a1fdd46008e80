"""The state of MXNet's random numbers on the CPU, saved and restored: two runs then draw the same numbers.

Saving and restoring both wait until MXNet has done all that it was asked for.
"""

from __future__ import annotations

import ctypes
import functools

import mxnet as mx
from mxnet import autograd

from echo import native
from echo.errors import EchoError, NativeError
from echo.frontend.mxnet_settings import COPIES_VARIABLE, has_one_generator
from echo.native.loading import function


class RandomState:
    """The state at one time. `saved` reads it, `restore` puts it back."""

    def __init__(self, state: bytes) -> None:
        self._state = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RandomState) and self._state == other._state

    __hash__ = None  # type: ignore[assignment]

    def restore(self) -> None:
        """From here on MXNet draws the same numbers as it did from where the state was saved."""
        mx.nd.waitall()
        function(_library(), "echo_random_load", None, ctypes.c_char_p)(self._state)


def saved() -> RandomState:
    """The present state.

    Raises:
        NativeError: this MXNet keeps it somewhere else.
    """
    why = why_not()
    if why:
        raise NativeError(why)
    return _saved()


def _saved() -> RandomState:
    mx.nd.waitall()
    state = ctypes.create_string_buffer(_size())
    function(_library(), "echo_random_save", None, ctypes.c_void_p)(state)
    return RandomState(state.raw)


def _library() -> ctypes.CDLL:
    return native.hook_library()


@functools.lru_cache(maxsize=None)
def _size() -> int:
    install = function(_library(), "echo_random_install", ctypes.c_size_t, ctypes.c_char_p)
    return int(install(mx.libinfo.find_lib_path()[0].encode()))


@functools.lru_cache(maxsize=None)
def why_not() -> str:
    """Why the state cannot be read here; empty where it can, which is tried once."""
    if not has_one_generator():
        return f"{COPIES_VARIABLE} is set: there are several generators"
    try:
        if not _size():
            return "libmxnet.so does not export what reading the state of random numbers needs"
        with autograd.pause():
            before = _saved()
            first, after = _drawn(), _saved()
            before.restore()
            second = _drawn()
            before.restore()
    except EchoError as error:
        return str(error)
    if first != second or first == _drawn_behind(after, before):
        return "random numbers do not come from where they are expected"
    return ""


def _drawn_behind(state: RandomState, before: RandomState) -> list[bytes]:
    with autograd.pause():
        state.restore()
        numbers = _drawn()
        before.restore()
    return numbers


def _drawn() -> list[bytes]:
    """Numbers that are drawn in order, and in parallel."""
    ones = mx.nd.ones(100)
    arrays = [mx.nd.random.uniform(shape=100), mx.nd.Dropout(ones, mode="always"), mx.nd.random.randint(0, 9, 100)]
    return [array.asnumpy().tobytes() for array in arrays]
