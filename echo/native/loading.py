"""Finds and opens the native libraries of the package."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Callable, Iterable

from echo.errors import NativeError
from echo.system.process import is_whole_library


def load(name: str, folders: Iterable[str]) -> ctypes.CDLL:
    """The library of this file name in the first of these folders that has it.

    Raises:
        NativeError: it was not built, is damaged, or cannot be loaded.
    """
    # an editable install keeps the libraries in another folder than the sources: a package's path knows both
    candidates = [Path(folder) / name for folder in folders]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise NativeError(
            f"{name} is not installed; it is built by a C++ compiler when echo is installed "
            "(Debian and Ubuntu: apt-get install g++), then reinstall mxnet-echo"
        )
    if not is_whole_library(path):
        raise NativeError(f"{path} cannot be loaded, reinstall mxnet-echo: the file is damaged")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"{path} cannot be loaded, reinstall mxnet-echo: {error}") from error


def function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A function of a library, with the types of its result and its arguments.

    Raises:
        NativeError: the library does not have it.
    """
    try:
        entry_point = getattr(library, name)
    except AttributeError as error:
        raise NativeError(f"{library._name} has no function {name}, reinstall mxnet-echo") from error
    entry_point.restype, entry_point.argtypes = result, arguments
    return entry_point  # type: ignore[no-any-return]
