"""Facts about the MXNet of this Python: its wheel, the CUDA libraries that it needs, whether it fits echo."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Iterator, NamedTuple

from echo import compat
from echo.cli.fact import FINE, OFF, STOPS, Fact
from echo.errors import UnsupportedError, one_line
from echo.system.cuda import load_for

if TYPE_CHECKING:
    from echo.frontend.examine import Examined

_WHEEL = re.compile(r"mxnet(-cu\d+)?(mkl)?$")


class Here(NamedTuple):
    """The wheel of MXNet by name, empty where there is none; what it says of itself, None where it does not work."""

    wheel: str
    examined: Examined | None
    facts: tuple[Fact, ...]


def mxnet() -> Here:
    """Imports MXNet, where it can be, and has it examined."""
    wheels = {dist.metadata["Name"].lower(): dist.version for dist in distributions() if dist.metadata["Name"]}
    wheels = {name: version for name, version in wheels.items() if _WHEEL.match(name)}
    wheel = next(iter(wheels), "")
    facts = list(_wheels(wheels))
    examined = None
    try:
        module = import_module("echo.frontend.examine")
        facts.append(Fact("MXNet", "version", module.version()))
        examined = module.examine()
    except ModuleNotFoundError as error:
        missing = error.name == "mxnet"
        remark = "pip install 'mxnet-echo[cpu]', or [cu102], [cu112], [cu117] for NVIDIA's GPUs"
        facts.append(Fact("MXNet", "import", "fails", remark if missing else one_line(error), STOPS))
    except UnsupportedError as error:
        facts.append(Fact("MXNet", "fits echo", False, str(error), STOPS))
    except Exception as error:
        facts.append(Fact("MXNet", "import", "fails", one_line(error), STOPS))
    return Here(wheel, examined, (*facts, *(_examined(examined) if examined else ())))


def _wheels(wheels: dict[str, str]) -> Iterator[Fact]:
    names = [f"{name} {version}" for name, version in wheels.items()]
    several = "they overwrite each other: uninstall all, install one" if len(names) > 1 else ""
    yield Fact("MXNet", "wheel", ", ".join(names) or "none", several, OFF if several else FINE)
    library = compat.libmxnet()
    if library is None:
        return
    yield Fact("MXNet", "library", str(library))
    try:
        missing = load_for(library)
    except (ValueError, OSError) as error:
        yield Fact("MXNet", "library is whole", False, str(error), STOPS)
        return
    if any("-cu" in name for name in wheels):
        said = compat.without_cuda(missing)
        yield Fact("MXNet", "CUDA libraries", "missing" if missing else "found", said, STOPS if missing else FINE)


def _examined(examined: Examined) -> Iterator[Fact]:
    fallback = f"{examined.hook}: MXNet's mirroring attributes are used, which save less"
    yield Fact("MXNet", "hook", "does not fit" if examined.hook else "fits", fallback if examined.hook else "",
               OFF if examined.hook else FINE)  # fmt: skip
    reason = "they need the hook" if examined.hook else examined.kernels
    yield Fact("MXNet", "fused operators", "off" if reason else "on", reason, OFF if reason else FINE)
    if examined.gpus:
        yield Fact("MXNet", "GPUs", "none", examined.gpus, OFF)
    if examined.fuses_pointwise:
        remark = "graphs that echo plans are bound without it"
        yield Fact("MXNet", "MXNET_USE_FUSION", "on", remark)
