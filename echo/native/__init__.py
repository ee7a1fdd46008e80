"""The two native libraries: the hook in MXNet's passes, and the fast planner.

``libecho_hook.so`` wraps MXNet's gradient and memory passes at run time (`install`, `uninstall`, `capture`);
``libecho_planner.so`` evaluates choices of the planner and knows nothing of MXNet. Both are built when the package is
installed and loaded at first use. Where one is missing or damaged, `NativeError` says so; callers then work without.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import struct
import threading
from pathlib import Path
from typing import Any, Callable, Iterator

from echo.errors import NativeError

_lock = threading.RLock()
_thread = threading.local()
if hasattr(os, "register_at_fork"):  # it is held for moments, into which no fork may fall: the library has a lock too
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_installed: ctypes.CDLL | None = None  # the library whose functions MXNet calls now


@functools.lru_cache(maxsize=None)
def _load(name: str) -> ctypes.CDLL:
    # an editable install keeps the libraries in another folder than the sources: the package's path knows both
    candidates = [Path(folder) / name for folder in __path__]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise NativeError(
            f"{name} is not installed; it is built by a C++ compiler when echo is installed "
            "(Debian and Ubuntu: apt-get install g++), then reinstall mxnet-echo"
        )
    if not _is_whole(path):
        raise NativeError(f"{path} cannot be loaded, reinstall mxnet-echo: the file is damaged")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"{path} cannot be loaded, reinstall mxnet-echo: {error}") from error


def _is_whole(path: Path) -> bool:
    """Whether a shared object ends where its header says: loading one that was cut off kills the process."""
    data = path.read_bytes()
    if len(data) < 64 or data[:5] != b"\x7fELF\x02":
        return False
    (sections,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    return bool(sections + size * count <= len(data))


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise NativeError(f"{library._name} has no function {name}, reinstall mxnet-echo") from error
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=None)
def planner_library() -> ctypes.CDLL:
    """The planner's library.

    Raises:
        NativeError: it was not built or cannot be loaded.
    """
    library = _load("libecho_planner.so")
    _function(library, "echo_planner_new", ctypes.c_void_p, ctypes.c_void_p)
    _function(library, "echo_planner_free", None, ctypes.c_void_p)
    pointer, number, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    _function(library, "echo_planner_evaluate", ctypes.c_double, pointer, pointer, number, pointer, pointer,
              pointer, number, size, pointer, pointer)  # fmt: skip
    _function(library, "echo_schedule_new", pointer, pointer, number, pointer)
    _function(library, "echo_schedule_free", None, pointer)
    _function(library, "echo_schedule_set", None, pointer, number, pointer, pointer)
    _function(library, "echo_schedule_get", number, pointer, number, pointer, pointer)
    _function(library, "echo_schedule_simulate", ctypes.c_double, pointer, pointer)
    _function(library, "echo_schedule_steps", number, pointer, number, pointer, pointer)
    _function(library, "echo_schedule_fit", ctypes.c_double, pointer, pointer, size, size, pointer)
    _function(library, "echo_schedule_least", ctypes.c_double, pointer, pointer, ctypes.c_double, size, pointer)
    _function(library, "echo_planner_blocks", None, pointer, pointer, pointer)
    return library


def install(libmxnet: str) -> None:
    """Wraps the gradient and memory passes of the loaded ``libmxnet.so`` at this path. Doing it twice is harmless.

    Raises:
        NativeError: the library is missing, damaged, or does not fit this MXNet.
    """
    global _installed
    with _lock:
        if _installed is not None:
            return
        library = _load("libecho_hook.so")
        error = _function(library, "echo_error", ctypes.c_char_p)
        if _function(library, "echo_install", ctypes.c_int, ctypes.c_char_p)(libmxnet.encode()):
            raise NativeError(f"the hook does not fit this MXNet: {error().decode()}")
        _installed = library


def installed() -> bool:
    """Whether MXNet's passes are wrapped now."""
    return _installed is not None


def uninstall() -> None:
    """Puts MXNet's own passes back; `install` wraps them again.

    Raises:
        NativeError: another library has wrapped the passes since; nothing is changed then.
    """
    global _installed
    with _lock:
        if _installed is None:
            return
        if _function(_installed, "echo_uninstall", ctypes.c_int)():
            raise NativeError(_function(_installed, "echo_error", ctypes.c_char_p)().decode())
        _installed = None


class Capture:
    """What `capture` caught: ``graph`` is the JSON value of the last training graph that was bound, or None."""

    graph: Any = None


@contextlib.contextmanager
def capture() -> Iterator[Capture]:
    """While this is open, the graphs that MXNet plans for the calling thread are written down (`Capture.graph`).

    Captures nest: each holds the last graph that was planned while it was open.
    """
    library = _installed or _load("libecho_hook.so")
    begin = _function(library, "echo_capture_begin", None)
    end = _function(library, "echo_capture_end", ctypes.c_char_p)
    caught = Capture()
    around = getattr(_thread, "captures", ())
    if around:
        _keep(around[-1], end())
    _thread.captures = (*around, caught)
    begin()
    try:
        yield caught
    finally:
        _keep(caught, end())
        _thread.captures = around
        if around:
            around[-1].graph = caught.graph or around[-1].graph
            begin()


def _keep(caught: Capture, text: bytes) -> None:
    if text:
        caught.graph = json.loads(text)
