"""The checks of ``mxecho doctor``: the parts of echo that work on this machine, and why others do not."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Sequence

from rich.table import Table

from echo import compat, native
from echo.errors import NativeError, OptionError, UnsupportedError, one_line
from echo.instrument.energy import Rapl
from echo.kernels import kernels_library, level
from echo.plans.variables import DEBUG_VARIABLE, RENAMED, VARIABLES, alike_variable, options_from, value_of
from echo.system.cuda import Gpu, driver, load_for
from echo.system.files import cache_folder, cached_files
from echo.system.terminal import counted, size_text, text_of

if TYPE_CHECKING:
    from echo.frontend.examine import Examined


FINE = "fine"
OFF = "off"  # echo works without it, and saves or checks less
STOPS = "stops"  # echo cannot work
_WIDTH = 120


@dataclass(frozen=True)
class Check:
    """A value that was found, and a remark: its meaning for echo, or the reason for the state."""

    section: str
    name: str
    value: str | int | bool
    remark: str = ""
    state: str = FINE


def _judged(section: str, name: str, value: str | int | bool, problem: str, state: str = OFF) -> Check:
    """A check that has this state if there is a problem."""
    return Check(section, name, value, problem, state if problem else FINE)


def examine() -> list[Check]:
    """Imports MXNet, runs kernels on each GPU, and returns all checks in the order in which they are shown."""
    wheel, of_mxnet, why_not = mxnet()
    return [
        *python(),
        *libraries(),
        compiler(),
        *of_mxnet,
        *gpus(wheel, why_not),
        *optional_dependencies(),
        *cache(),
        *variables(os.environ),
    ]


def works(checks: Iterable[Check]) -> bool:
    """Whether echo can work here."""
    return all(check.state != STOPS for check in checks)


def render(checks: Sequence[Check]) -> str:
    """Renders the checks as a table of at most 120 columns; below it whether echo works, why not, and what is off."""
    table = Table("echo doctor", "found", "remark")
    for column in table.columns:
        column.overflow = "fold"
    for section in dict.fromkeys(check.section for check in checks):
        table.add_section()
        for check in checks:
            if check.section == section:
                remark = ": ".join(filter(None, ["" if check.state == FINE else check.state, check.remark]))
                table.add_row(f"{section}: {check.name}", _word(check.value), remark)
    lines = ["echo works here." if works(checks) else "echo cannot work here:"]
    lines += [f"  {check.section}, {check.name}: {check.remark or _word(check.value)}" for check in checks
              if check.state == STOPS]  # fmt: skip
    off = ", ".join(f"{check.section}: {check.name}" for check in checks if check.state == OFF)
    return text_of([table, *lines, *([f"Off: {off}."] if off else [])], _WIDTH)


def _word(value: str | int | bool) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


# Python, echo itself, and the compiler.

_COMPILERS = ("c++", "g++", "clang++")  # which CMake looks for, in this order
_NEWEST, _OLDEST = (3, 13), (3, 8)


def python() -> Iterator[Check]:
    """Python, numpy, and whether ECHO=1 is seen when Python starts."""
    fits = _OLDEST <= sys.version_info[:2] < _NEWEST
    yield _judged("Python", "version", platform.python_version(), "" if fits else "expected 3.8 to 3.12", STOPS)
    yield Check("Python", "program", sys.executable)
    numpy = version("numpy")
    too_new = int(numpy.split(".")[0]) >= 2
    yield _judged("Python", "numpy", numpy, "expected one below 2: pip install 'numpy<2'" if too_new else "", STOPS)
    if "_echo_startup" in sys.modules or importlib.util.find_spec("_echo_startup") is not None:
        yield Check("Python", "ECHO=1", "is seen when Python starts")
    else:
        remark = "no _echo_startup.py in site-packages: use `mxecho run` instead of ECHO=1"
        yield Check("Python", "ECHO=1", "is not seen", remark, OFF)


def libraries() -> Iterator[Check]:
    """Echo, its native libraries, and the instructions that its kernels use."""
    yield Check("echo", "version", version("mxnet-echo"))
    yield Check("echo", "folder", str(Path(native.__path__[0]).parent))
    loads: dict[str, Callable[[], object]] = {
        "hook": native.hook_library, "planner": native.planner_library, "kernels": kernels_library,
    }  # fmt: skip
    for name, load in loads.items():
        try:
            load()
        except NativeError as error:
            yield Check("echo", f"{name} (C++)", "missing", str(error), OFF)
        else:
            yield Check("echo", f"{name} (C++)", "loaded")
    with contextlib.suppress(NativeError):  # which is among the checks
        yield Check("echo", "CPU kernels use", level())


def compiler() -> Check:
    """The C++ compiler that would build the native libraries."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else _COMPILERS
    program = next(filter(None, map(shutil.which, names)), None)
    remark = "" if program else "needed only to build echo's native libraries: apt install g++"
    return Check("echo", "compiler", program or "none", remark)


# The MXNet of this Python: its wheel, the CUDA libraries that it needs, whether it fits echo.

_WHEEL = re.compile(r"mxnet(-cu\d+)?(mkl)?$")


def mxnet() -> tuple[str, list[Check], Sequence[str] | None]:
    """Imports MXNet, if there is one, and has it examined.

    Returns the name of its wheel, or "" without one; the checks; and for each GPU, why echo's kernels do not run there,
    or None if MXNet does not work.
    """
    wheels = {dist.metadata["Name"].lower(): dist.version for dist in distributions() if dist.metadata["Name"]}
    wheels = {name: version for name, version in wheels.items() if _WHEEL.match(name)}
    checks, devices = list(_wheels(wheels)), None
    try:
        module = import_module("echo.frontend.examine")
        checks.append(Check("MXNet", "version", module.version()))
        examined = module.examine()
        checks += _examined(examined)
        devices = examined.devices
    except UnsupportedError as error:
        checks.append(Check("MXNet", "fits echo", False, str(error), STOPS))
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "mxnet"
        install = "pip install 'mxnet-echo[cpu]', or [cu102], [cu112], [cu117] for NVIDIA's GPUs"
        checks.append(Check("MXNet", "import", "fails", install if missing else one_line(error), STOPS))
    return next(iter(wheels), ""), checks, devices


def _wheels(wheels: Mapping[str, str]) -> Iterator[Check]:
    names = ", ".join(f"{name} {version}" for name, version in wheels.items())
    several = "they overwrite each other: uninstall all, install one" if len(wheels) > 1 else ""
    yield _judged("MXNet", "wheel", names or "none", several)
    library = compat.libmxnet()
    if library is None:
        return
    yield Check("MXNet", "library", str(library))
    try:
        missing = load_for(library)
    except OSError as error:
        yield Check("MXNet", "library is whole", False, str(error), STOPS)
        return
    if any("-cu" in name for name in wheels):
        found = "missing" if missing else "found"
        yield _judged("MXNet", "CUDA libraries", found, compat.without_cuda(missing), STOPS)


def _examined(examined: Examined) -> Iterator[Check]:
    hook, kernels = examined.hook, "they need the hook" if examined.hook else examined.kernels
    fallback = f"{hook}: MXNet's mirroring attributes are used, which save less" if hook else ""
    yield _judged("MXNet", "hook", "does not fit" if hook else "fits", fallback)
    yield _judged("MXNet", "fused operators", "off" if kernels else "on", kernels)
    if examined.gpus:
        yield Check("MXNet", "GPUs", "none", examined.gpus, OFF)
    if examined.fuses_pointwise:
        yield Check("MXNet", "MXNET_USE_FUSION", "on", "graphs that echo plans are bound without it")


# NVIDIA's driver and GPUs: which of them MXNet's wheel has code for, and which run echo's kernels.

# The least and the largest compute capability that the wheels of MXNet 1.9.1 have code for.
CODE = {
    "mxnet-cu102": ((3, 0), (7, 5)),
    "mxnet-cu112": ((5, 0), (8, 9)),
    "mxnet-cu117": ((5, 0), (8, 9)),
}
PTX_CUDA, PTX_CAPABILITY = (9, 0), (5, 0)  # the least of a driver and of a device for the PTX of echo's kernels


def has_code(wheel: str, capability: tuple[int, int]) -> bool | None:
    """Whether this wheel of MXNet runs on devices of a compute capability; None of wheels without a row in `CODE`."""
    if wheel not in CODE:
        return None
    least, largest = CODE[wheel]
    return least <= capability <= largest


def gpus(wheel: str, why_not: Sequence[str] | None) -> Iterator[Check]:
    """The driver, and each GPU.

    Args:
        wheel: the name of MXNet's wheel.
        why_not: for each GPU that MXNet sees, why echo's kernels do not run there, or ""; None if MXNet does not work.
    """
    try:
        nvidia = driver()
    except LookupError as error:
        yield Check("GPU", "driver", "none", str(error))
        return
    old = "too old for echo's kernels; " if nvidia.cuda < PTX_CUDA else ""
    remark = f"{old}runs CUDA up to {_text(nvidia.cuda)}"
    yield Check("GPU", "driver", nvidia.release or "there, of unknown version", remark, OFF if old else FINE)
    if not nvidia.gpus:
        yield Check("GPU", "devices", 0, "the driver finds no CUDA device")
    for number, gpu in enumerate(nvidia.gpus):
        yield from _gpu(number, gpu, wheel, why_not)


def _gpu(number: int, gpu: Gpu, wheel: str, why_not: Sequence[str] | None) -> Iterator[Check]:
    name = f"gpu({number})"
    yield Check("GPU", name, f"{gpu.name}, {gpu.bytes / 10**9:.1f} GB, compute capability {_text(gpu.capability)}")
    code = has_code(wheel, gpu.capability)
    if not wheel.startswith("mxnet-cu"):
        remark, state = "the wheel is for CPUs: pip install mxnet-cu112==1.9.1 instead", OFF
    elif code is None:
        remark, state = "not known of this wheel", FINE
    else:
        remark, state = f"the wheel has code for {' to '.join(map(_text, CODE[wheel]))}", FINE if code else OFF
    yield Check("GPU", f"{name} MXNet has code", "unknown" if code is None else code, remark, state)
    if why_not is None:
        return
    reason = "MXNet does not see the device" if number >= len(why_not) else why_not[number]
    if gpu.capability < PTX_CAPABILITY:
        reason = f"they need compute capability {_text(PTX_CAPABILITY)}"
    yield _judged("GPU", f"{name} runs echo's kernels", not reason, reason)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


# Parts that need other packages or permissions: pages and pictures, the policy ``ilp``, energy.

_EXTRAS = {"pages and pictures": ("report", ("jinja2", "vl_convert")), "the policy ilp": ("ilp", ("highspy",))}


def optional_dependencies() -> Iterator[Check]:
    """Whether the extras of the package are installed, and whether the energy of the processors can be read."""
    for name, (extra, modules) in _EXTRAS.items():
        there = all(map(importlib.util.find_spec, modules))
        yield Check("extras", name, there, "" if there else f"pip install 'mxnet-echo[{extra}]'")
    try:
        Rapl()
    except LookupError as error:
        yield Check("extras", "energy of CPUs", False, str(error).partition(": ")[2])
    else:
        yield Check("extras", "energy of CPUs", True, "by RAPL")


# The cache folder, and the ``ECHO_*`` variables.


def cache() -> Iterator[Check]:
    """The cache folder of measured times and plans."""
    folder = cache_folder()
    yield Check("cache", "folder", str(folder), "" if folder.exists() else "made when the first plan is")
    if folder.is_dir():
        owner, files = folder.stat().st_uid, cached_files(folder)
        others = "" if owner == os.getuid() else "another user: files of others are not read"
        try:
            name = folder.owner()
        except KeyError:  # as in containers
            name = str(owner)
        yield _judged("cache", "owner", name, others)
        yield Check("cache", "size", f"{counted(len(files), 'file')}, {size_text(sum(file.bytes for file in files))}")
    reason = _why_not_writable(folder)
    yield _judged("cache", "writable", not reason, reason and f"{reason}: each process measures and plans again")


def _why_not_writable(folder: Path) -> str:
    """Returns why no file can be written into a folder that is made if needed, or "" if one can."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return ""
    except OSError as error:
        return f"{existing}: {error.strerror}"


def variables(environment: Mapping[str, str]) -> Iterator[Check]:
    """The ``ECHO_*`` variables that are set, with their meaning, or the error that echo raises for the value."""
    set_here = {name: text for name, text in environment.items() if name == "ECHO" or name.startswith("ECHO_")}
    checks = [Check("variables", name, set_here[name], *_remark_on(name, set_here[name])) for name in sorted(set_here)]
    yield from checks
    if works(checks):
        try:
            options_from(environment)
        except OptionError as error:
            yield Check("variables", "all of them", "do not go together", str(error), STOPS)


def _remark_on(name: str, text: str) -> tuple[str, str]:
    """Returns the meaning of a variable, or its error, and the state."""
    if name in RENAMED and text:
        return f"this variable is now {RENAMED[name]}", STOPS
    if name not in VARIABLES:
        alike = alike_variable(name)
        return f"no variable of echo's{f'; {alike} is one' if alike else ''}", OFF
    try:
        value: Any = value_of(name, {name: text}) if text.strip() else None  # an empty one means the default
        options_from({name: text})
    except OptionError as error:
        return str(error), STOPS
    reason = _why_not_writable(Path(value.dump)) if name == DEBUG_VARIABLE and value and value.dump else ""
    if reason:
        return f"dump: expected a folder to write to, got {value.dump!r}: {reason}", STOPS
    return VARIABLES[name][2], FINE
