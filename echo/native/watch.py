"""Whether arrays were written between a forward pass and its backward pass: the hook's functions for that.

`Watch` has a text to report for each array. `Watch.record` notes the arrays as they are after all that the engine was
asked for so far. Only `Record.changed` waits, for writes that were asked for before.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Sequence

from echo.errors import NativeError
from echo.native import function


class FailedError(Exception):
    """MXNet has an error to report, as of an operator whose result is waited for."""


class WatchLibrary:
    """The functions of the hook's library.

    Raises:
        NativeError: the library does not have them, or does not find what it needs in ``libmxnet.so``.
    """

    def __init__(self, library: ctypes.CDLL, libmxnet: str) -> None:
        pointer, text, count = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32
        if function(library, "echo_watch_install", ctypes.c_int, text)(libmxnet.encode()):
            raise NativeError("libmxnet.so does not export what watching arrays needs")
        size = ctypes.c_size_t
        self.fits = function(library, "echo_watch_fits", ctypes.c_int, pointer, pointer, size, pointer, size)
        self.version = function(library, "echo_watch_version", size, pointer)
        self.new = function(library, "echo_watch_new", pointer, text, ctypes.c_int)
        self.free = function(library, "echo_watch_free", None, pointer)
        self.record = function(library, "echo_watch_record", pointer, pointer, pointer)
        self.free_record = function(library, "echo_record_free", None, pointer)
        self.changed = function(library, "echo_record_changed", text, pointer)
        self.attach = function(library, "echo_record_attach", None, pointer, pointer)
        self.upstream = function(library, "echo_changed_upstream", text, pointer, count, pointer, count)


class Record:
    """The versions of arrays at a forward pass."""

    def __init__(self, library: WatchLibrary, handle: int) -> None:
        self._library, self._handle = library, handle
        weakref.finalize(self, library.free_record, handle).atexit = False

    def changed(self) -> str:
        """The text of an array that was written since; empty where none was.

        Raises:
            FailedError: an operator failed that had to write one of them.
        """
        return told(self._library.changed(self._handle))

    def attach(self, output: Any) -> None:
        """Has the record live for as long as the pass that MXNet recorded, of which this handle is an output."""
        self._library.attach(self._handle, output)


class Watch:
    """Arrays that are read in backward, one text for each.

    MXNet also counts writes that leave an array as it is. With ``digests`` these are told apart, in short arrays.
    """

    def __init__(self, library: WatchLibrary, texts: Sequence[str], digests: bool = True) -> None:
        self._library, self._count = library, len(texts)
        self._handle = library.new("\n".join(text.replace("\n", " ") for text in texts).encode(), digests)
        weakref.finalize(self, library.free, self._handle).atexit = False

    def record(self, handles: Sequence[Any]) -> Record:
        """Notes these arrays, in the order of the texts.

        Raises:
            FailedError: MXNet's engine does not take the request.
        """
        record = self._library.record(self._handle, (ctypes.c_void_p * self._count)(*handles))
        if record is None:
            raise FailedError
        return Record(self._library, record)


def told(text: bytes | None) -> str:
    """The library's text as a string; None stands for an MXNet error.

    Raises:
        FailedError: it is None.
    """
    if text is None:
        raise FailedError
    return text.decode()
