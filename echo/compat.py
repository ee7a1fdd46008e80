"""Lets stock mxnet 1.9.1 import and train under numpy 1.24 to 1.26 and Python 3.12, which by itself it does not.

``import echo.compat`` before mxnet is enough; ``import echo`` and ``ECHO=1`` do the same. The program is changed when
mxnet is imported, and no more than mxnet needs:

- numpy 1.24 removed the aliases ``numpy.bool`` and ``numpy.int``, which mxnet reads: they are Python's own types again.
- Python 3.12 removed ``distutils``, of which mxnet compares two versions: unless setuptools brings it, a stand-in for
  ``distutils.version`` takes its place.
- MXNet's CUDA wheels leave the CUDA libraries out: those of NVIDIA's pip wheels are loaded where the dynamic loader
  finds none of its own (`echo.system.cuda`).

numpy 2 is out of reach: mxnet 1.9.1 excludes it in its own requirements, and reads a dozen names that numpy 2 lacks.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import types
from pathlib import Path

from echo.errors import UnsupportedError
from echo.system.cuda import load_for

SUPPORTED = "1.9.1"
_ALIASES = {"bool": bool, "int": int}  # all that mxnet 1.9.1 reads of what numpy 1.24 removed


def prepare() -> str:
    """Makes up for what numpy and Python removed since mxnet 1.9.1 and for missing CUDA libraries, before the import.

    Returns what stands in mxnet's way all the same, else an empty text.
    """
    _provide_distutils()
    return _provide_aliases() or _provide_cuda()


def check_version(version: str) -> None:
    """Raises `UnsupportedError` for any MXNet but the one that the hook and the planner replay exactly."""
    if version != SUPPORTED:
        raise UnsupportedError(f"expected mxnet {SUPPORTED}, got {version}")


def _provide_aliases() -> str:
    try:
        import numpy
    except ImportError:
        return ""  # mxnet says so itself
    version = tuple(int(part) for part in numpy.__version__.split(".")[:2])
    if version >= (2, 0):
        return f"mxnet {SUPPORTED} needs numpy below 2, got {numpy.__version__}: pip install 'numpy<2'"
    if version >= (1, 24):
        for name, kind in _ALIASES.items():
            vars(numpy).setdefault(name, kind)
    return ""


def libmxnet() -> Path | None:
    """Returns the path of libmxnet.so in the mxnet that Python imported, or would; None where there is none."""
    try:
        spec = importlib.util.find_spec("mxnet")
    except ValueError:  # a module without a spec, which a program made up
        return None
    library = Path(spec.origin).with_name("libmxnet.so") if spec and spec.origin else None
    return library if library and library.is_file() else None


def without_cuda(missing: str) -> str:
    """Tells the user, in a sentence, how to get a missing CUDA library; empty where none is missing."""
    if not missing:
        return ""
    driver = ", and NVIDIA's driver" if missing == "libcuda.so.1" else ""
    return f"MXNet's CUDA wheel needs {missing}: see the README, \"On NVIDIA's GPUs\"{driver}"


def _provide_cuda() -> str:
    library = libmxnet()
    if library is None:
        return ""  # mxnet says so itself
    try:
        return without_cuda(load_for(library))
    except OSError:  # the dynamic loader says more of such a file
        return ""


def _provide_distutils() -> None:
    if "distutils" in sys.modules or importlib.util.find_spec("distutils") is not None:
        return
    package, module = types.ModuleType("distutils"), types.ModuleType("distutils.version")
    package.__path__ = []
    package.__doc__ = module.__doc__ = "A stand-in by echo.compat, as mxnet 1.9.1 needs it."
    package.version = module  # type: ignore[attr-defined]
    module.LooseVersion = module.StrictVersion = _Version  # type: ignore[attr-defined]
    sys.modules.update({"distutils": package, "distutils.version": module})


@functools.total_ordering
class _Version:
    """A version of numpy, compared by its numbers."""

    def __init__(self, text: str) -> None:
        self.numbers = tuple(int(number) for number in re.findall(r"\d+", text))

    def __eq__(self, other: object) -> bool:
        return self.numbers == other.numbers if isinstance(other, _Version) else NotImplemented

    def __lt__(self, other: _Version) -> bool:
        return self.numbers < other.numbers

    __hash__ = None  # type: ignore[assignment]
