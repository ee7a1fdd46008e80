"""Plans that were asked for by the same words before: `mxecho plan` then answers without MXNet.

Its import takes longer than all the rest. The file is named by all that a plan depends on, seen from outside:
the bytes of the symbol, the words, MXNet's library, the processor, variables of the environment, and echo's own code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
from pathlib import Path
from typing import Sequence

from echo.errors import EchoError
from echo.planning.plan_cache import keep, key_of, path_of, read
from echo.plans.plan import Plan
from echo.system import files
from echo.system.files import read_bytes
from echo.system.process import cores, processor

_FORMAT = "echo-asked-plan-1"
_SAVED_HERE = re.compile(rb'"mxnet_version"\s*:\s*\[\s*"int"\s*,\s*10901\s*\]')
_VARIABLES = ("ECHO", "MXNET_", "NNVM_", "OMP_", "KMP_", "DNNL_", "MKLDNN_", "CUDA_", "NVIDIA_", "LD_", "PYTHONPATH")


def name_of(symbol: Path, words: Sequence[str]) -> str:
    """The name of what is asked: the plan of a saved symbol with some words, here and now.

    Empty where nothing may be answered from a file: the symbol cannot be read, or another MXNet than this one saved it,
    of which MXNet warns; MXNet is not installed, or ``MXNET_LIBRARY_PATH`` names another; or ``ECHO_TRACE`` asks for
    what each stage gives.
    """
    library = _library()
    if library is None or os.environ.get("ECHO_TRACE") or os.environ.get("MXNET_LIBRARY_PATH"):
        return ""
    try:
        data = read_bytes(symbol)
    except OSError:
        return ""
    if not _SAVED_HERE.search(data):
        return ""
    digest = hashlib.sha256(data).hexdigest()
    variables = (f"{name}={text}" for name, text in sorted(os.environ.items()) if name.startswith(_VARIABLES))
    machine = (library, processor(), str(cores()), platform.python_version())
    return key_of([_FORMAT, digest, *machine, str(len(words)), *words, *variables])


def answer(name: str) -> Plan | None:
    """The plan that was the answer; None where there was none, or its file is damaged."""
    value = read(name, _purpose(name)) if name else None
    if value is None:
        return None
    try:
        return Plan.from_json(value.get("plan"))
    except EchoError as error:
        files.ignore(path_of(name), str(error))
        return None


def remember(name: str, plan: Plan) -> None:
    """Keeps the answer, unless planning it had more to say, which has to be said again: that the hook is missing."""
    if name and plan.applied == "hook" and not plan.failed:
        keep(name, _purpose(name), {"plan": plan.to_json()})


def _purpose(name: str) -> str:
    return f"{_FORMAT} {name}"


def _library() -> str | None:
    """The library of the MXNet that would be imported, its size and when it was written; None where there is none."""
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "libmxnet.so"
    try:
        state = path.stat()
    except OSError:
        return None
    return f"{path} {state.st_size} {state.st_mtime_ns}"
