"""The library of `fuzz.poison`: it writes memory plans down and overwrites chunks of memory.

It is not part of the package: ``fuzz/poison.cc`` is compiled into ``build/poison`` at first use, with the files of the
hook that read MXNet's graphs.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import mxnet

from echo.errors import NativeError
from echo.native import function

_ROOT = Path(__file__).resolve().parents[1]
_HOOK = _ROOT / "echo" / "native" / "hook"
_SOURCES = (
    _ROOT / "fuzz" / "poison.cc",
    *(_HOOK / f"{name}.cc" for name in ("gradient_sums", "mxnet_api", "storage", "unused_outputs")),
)
# As the hook is compiled: the wheels of MXNet have std::string as it was before C++11.
_FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-D_GLIBCXX_USE_CXX11_ABI=0")


def start() -> None:
    """Starts to write down every memory plan, as the hook leaves it if that is installed.

    Raises:
        NativeError: the library cannot be compiled, or does not fit this MXNet.
    """
    if _function("echo_record", ctypes.c_int)():
        raise NativeError("MXNet's memory pass cannot be wrapped")


def stop() -> None:
    """Ends it; the hook can be uninstalled again."""
    _function("echo_stop_recording", None)()


def recorded() -> str:
    """The memory plans that this thread made since it last asked, a JSON list."""
    text: bytes = _function("echo_recorded", ctypes.c_char_p)()
    return text.decode("utf-8", "surrogateescape")


def overwrite(array: int, byte: int) -> None:
    """Overwrites the chunk of memory that an array lies in, after all work that MXNet was given; frees the handle."""
    if _function("echo_poison", ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(array, byte):
        raise NativeError("MXNet's engine took no work")


@functools.lru_cache(maxsize=None)
def _function(name: str, result: Any, *arguments: Any) -> Any:
    return function(_library(), name, result, *arguments)


@functools.lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    path = _ROOT / "build" / "poison" / f"libpoison-{_digest()}.so"
    if not path.exists():
        _compile(path)
    library = ctypes.CDLL(str(path))
    libmxnet: str = mxnet.libinfo.find_lib_path()[0]
    if function(library, "echo_poison_load", ctypes.c_int, ctypes.c_char_p)(libmxnet.encode()):
        raise NativeError(f"{libmxnet} lacks a function that poison needs")
    return library


def _digest() -> str:
    """The digest of all that is compiled."""
    found = hashlib.sha256(" ".join(_FLAGS).encode())
    for path in (*_SOURCES, *sorted(_HOOK.glob("*.h")), *sorted((_HOOK.parent / "storage").glob("*.h"))):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _compile(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CXX", "g++")
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # as of a sanitizer
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *_FLAGS, "-shared", "-I", str(_HOOK), *map(str, _SOURCES), "-o", str(made), "-ldl"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        except FileNotFoundError:
            raise NativeError(f"poison is compiled by {compiler}, which is not installed") from None
        except subprocess.CalledProcessError as error:
            raise NativeError(f"fuzz/poison.cc is not compiled: {error.stderr}") from None
        os.replace(made, path)
