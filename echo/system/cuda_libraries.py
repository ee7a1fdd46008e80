"""The CUDA libraries that MXNet's CUDA wheels leave out, loaded from NVIDIA's pip wheels before mxnet is imported.

Those wheels put their libraries into ``site-packages/nvidia/NAME/lib``, where the dynamic loader does not look. What is
in the process already, the loader takes by its name: so loading a library by its path is enough for libmxnet.so.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Mapping

from echo.system.elf import wanted_by

_CUDA = re.compile(r"lib(cu[a-zA-Z]+|nccl|nvrtc|nvToolsExt)\.so(\.|$)")


def load_for(libmxnet: Path) -> list[str]:
    """Loads the CUDA libraries that this libmxnet.so asks for from NVIDIA's wheels, where the loader has none.

    Returns the names of those that neither has, ``libcuda.so.1`` of the driver among them; none for a wheel without
    CUDA.

    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be read.
    """
    wanted = wanted_by(libmxnet)
    beside = [name for name in wanted.needed if any((folder / name).exists() for folder in wanted.folders)]
    names = [name for name in wanted.needed if _CUDA.match(name) and name not in beside]
    at_hand = of_wheels() if names else {}
    return [name for name in names if not _load(name, at_hand, set())]


def of_wheels() -> dict[str, Path]:
    """The libraries of NVIDIA's wheels on ``sys.path``, by name; of several of a name, what Python would import."""
    paths: dict[str, Path] = {}
    for entry in sys.path:
        for path in sorted(Path(entry).glob("nvidia/*/lib/lib*.so*")):
            paths.setdefault(path.name, path)
    return paths


def _load(name: str, at_hand: Mapping[str, Path], begun: set[str]) -> bool:
    """Whether the process has the library: the loader's own, else that of a wheel, behind those that it needs."""
    if _opens(name):
        return True
    if name not in at_hand or name in begun:
        return False
    begun.add(name)
    try:
        needed = wanted_by(at_hand[name]).needed
    except (ValueError, OSError):
        return False
    for other in needed:
        if other in at_hand:
            _load(other, at_hand, begun)
    return _opens(str(at_hand[name]))


def _opens(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
