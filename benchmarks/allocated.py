"""How much memory MXNet and oneDNN allocate, which MXNet's storage counter shows in part.

oneDNN's own blocks, such as what an RNN operator keeps for its gradient, lie beside MXNet's storage, and beside every
figure that MXNet gives. Both come from ``posix_memalign``, which a small library counts where it is preloaded.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cc")
_NAME = "liballocated.so"


@functools.lru_cache(maxsize=None)
def preloaded() -> dict[str, str]:
    """The environment variable with which a child process counts; builds the library, once a process.

    Raises:
        CalledProcessError, OSError: g++ does not build it.
    """
    folder = Path(tempfile.mkdtemp(prefix="echo-allocated-"))
    library = folder / _NAME
    subprocess.run(["g++", "-O2", "-std=c++17", "-shared", "-fPIC", str(SOURCE), "-o", str(library)], check=True)
    return {"LD_PRELOAD": str(library)}


def peak() -> int:
    """The most bytes that were allocated at once in this process, which has the library preloaded.

    Raises:
        RuntimeError: it has not.
    """
    if _NAME not in os.environ.get("LD_PRELOAD", ""):
        raise RuntimeError(f"expected {_NAME} to be preloaded, see preloaded()")
    found = ctypes.CDLL(None).echo_allocated_peak
    found.restype = ctypes.c_int64
    return int(found())
