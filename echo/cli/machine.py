"""What of echo works on this machine, and why the rest does not: facts for ``mxecho doctor``."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

from rich.table import Table

from echo import compat, native
from echo.errors import NativeError, OptionError, UnsupportedError, one_line
from echo.instrument.energy import Rapl
from echo.kernels import kernels_library, level
from echo.plans.options import Options
from echo.plans.variables import DEBUG_VARIABLE, RENAMED, VARIABLES, alike_variable, options_from, value_of
from echo.policies import policy_of
from echo.system.cuda import Driver, Gpu, driver, load_for
from echo.system.files import cache_folder, kept
from echo.system.terminal import size_text, text_of

if TYPE_CHECKING:
    from echo.frontend.examine import Examined


# A fact about the machine, which is one row in the table of ``mxecho doctor``.

FINE = "fine"
OFF = "off"  # echo works without it, and saves or checks less
STOPS = "stops"  # echo cannot work


@dataclass(frozen=True)
class Fact:
    """A value that was found, what it means for echo, and a remark on it: the reason of what is off or stops echo."""

    section: str
    name: str
    value: str | int | bool
    remark: str = ""
    state: str = FINE


# Facts about what takes more than echo itself: pages and pictures, the policy ``ilp``, energy.

_EXTRAS = {"pages and pictures": ("report", ("jinja2", "vl_convert")), "the policy ilp": ("ilp", ("highspy",))}


def extras() -> Iterator[Fact]:
    """What the extras of the package bring, and whether the energy of the processors can be read."""
    for name, (extra, modules) in _EXTRAS.items():
        there = all(importlib.util.find_spec(module) for module in modules)
        yield Fact("extras", name, there, "" if there else f"pip install 'mxnet-echo[{extra}]'")
    try:
        Rapl()
    except LookupError as error:
        yield Fact("extras", "energy of CPUs", False, str(error).partition(": ")[2])
    else:
        yield Fact("extras", "energy of CPUs", True, "by RAPL")


# Facts about NVIDIA's driver and GPUs: which of them MXNet's wheel has code for, and which run echo's kernels.

# The compute capabilities that the wheels of MXNet 1.9.1 have code for, and no PTX for others. Code runs on devices of
# the same major number and as large a minor one.
_OF_CUDA_11 = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
CODE = {
    "mxnet-cu102": ((3, 0), (5, 0), (6, 0), (7, 0), (7, 5)),
    "mxnet-cu112": _OF_CUDA_11,
    "mxnet-cu117": _OF_CUDA_11,
}
PTX_CUDA, PTX_CAPABILITY = (9, 0), (5, 0)  # what the PTX of echo's kernels needs of a driver and of a device


def has_code(wheel: str, capability: tuple[int, int]) -> bool | None:
    """Whether this wheel of MXNet runs on devices of a compute capability; None of wheels without a row in `CODE`."""
    if wheel not in CODE:
        return None
    return any(major == capability[0] and minor <= capability[1] for major, minor in CODE[wheel])


def gpus(wheel: str, why_not: Sequence[str] | None) -> Iterator[Fact]:
    """The driver, and each GPU.

    Args:
        wheel: the name of MXNet's wheel.
        why_not: why echo's kernels do not run on each GPU that MXNet sees, empty texts where they do; None where MXNet
            could not be asked.
    """
    needed = f"a driver of CUDA {_text(PTX_CUDA)}, compute capability {_text(PTX_CAPABILITY)}"
    yield Fact("GPU", "echo's kernels need", needed, "or later; they are PTX, which the driver compiles")
    try:
        nvidia = driver()
    except LookupError as error:
        yield Fact("GPU", "driver", "none", str(error))
        return
    yield from _driver(nvidia)
    if not nvidia.gpus:
        yield Fact("GPU", "devices", 0, "the driver finds no CUDA device")
    for number, gpu in enumerate(nvidia.gpus):
        yield from _gpu(number, gpu, wheel, why_not)


def _driver(driver: Driver) -> Iterator[Fact]:
    old = "too old for echo's kernels; " if driver.cuda < PTX_CUDA else ""
    remark = f"{old}runs CUDA up to {_text(driver.cuda)}"
    yield Fact("GPU", "driver", driver.release or "there, of unknown version", remark, OFF if old else FINE)


def _gpu(number: int, gpu: Gpu, wheel: str, why_not: Sequence[str] | None) -> Iterator[Fact]:
    name = f"gpu({number})"
    yield Fact("GPU", name, f"{gpu.name}, {gpu.bytes / 10**9:.1f} GB, compute capability {_text(gpu.capability)}")
    code = has_code(wheel, gpu.capability)
    if not wheel.startswith("mxnet-cu"):
        remark, state = "the wheel is for CPUs: pip install mxnet-cu112==1.9.1 in its place", OFF
    elif code is None:
        remark, state = "not known of this wheel", FINE
    else:
        listed = ", ".join(map(_text, CODE[wheel]))
        remark, state = f"the wheel has code for {listed}", FINE if code else OFF
    yield Fact("GPU", f"{name} MXNet has code", "unknown" if code is None else code, remark, state)
    if why_not is None:
        return
    reason = "MXNet does not see the device" if number >= len(why_not) else why_not[number]
    if gpu.capability < PTX_CAPABILITY:
        reason = f"they need compute capability {_text(PTX_CAPABILITY)}"
    yield Fact("GPU", f"{name} runs echo's kernels", not reason, reason, OFF if reason else FINE)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


# Facts about the MXNet of this Python: its wheel, the CUDA libraries that it needs, whether it fits echo.

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
    except OSError as error:
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


# Facts about the machine that take no MXNet: Python, echo itself, compiler, cache folder, variables.

_COMPILERS = ("c++", "g++", "clang++")  # which CMake looks for, in this order
_NEWEST, _OLDEST = (3, 13), (3, 8)


def python() -> Iterator[Fact]:
    """Python, numpy, and whether ECHO=1 is seen when Python starts."""
    fits = _OLDEST <= sys.version_info[:2] < _NEWEST
    remark = "" if fits else "expected 3.8 to 3.12"
    yield Fact("Python", "version", platform.python_version(), remark, FINE if fits else STOPS)
    yield Fact("Python", "program", sys.executable)
    numpy = version("numpy")
    too_new = int(numpy.split(".")[0]) >= 2
    remark = "expected one below 2: pip install 'numpy<2'" if too_new else ""
    yield Fact("Python", "numpy", numpy, remark, STOPS if too_new else FINE)
    seen = "_echo_startup" in sys.modules or importlib.util.find_spec("_echo_startup") is not None
    remark = "" if seen else "no _echo_startup.py in site-packages: use `mxecho run` in the place of ECHO=1"
    value = "is seen when Python starts" if seen else "is not seen"
    yield Fact("Python", "ECHO=1", value, remark, FINE if seen else OFF)


def libraries() -> Iterator[Fact]:
    """Echo, its native libraries, and the instructions that its kernels use."""
    yield Fact("echo", "version", version("mxnet-echo"))
    yield Fact("echo", "folder", str(Path(native.__path__[0]).parent))
    loads: tuple[Callable[[], object], ...] = (native.hook_library, native.planner_library, kernels_library)
    for name, load in zip(("hook", "planner", "kernels"), loads):
        try:
            load()
        except NativeError as error:
            yield Fact("echo", f"{name} (C++)", "missing", str(error), OFF)
        else:
            yield Fact("echo", f"{name} (C++)", "loaded")
    try:
        yield Fact("echo", "CPU kernels use", level())
    except NativeError:
        return  # said above


def compiler() -> Iterator[Fact]:
    """The C++ compiler that would build the native libraries; they are there already where they are loaded."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else _COMPILERS
    program = next((path for path in map(shutil.which, names) if path), None)
    if program is None:
        yield Fact("echo", "compiler", "none", "needed only to build echo's native libraries: apt install g++")
        return
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Fact("echo", "compiler", program, f"does not say its version: {error}")
    else:
        yield Fact("echo", "compiler", next(iter(done.stdout.splitlines()), program))


def cache() -> Iterator[Fact]:
    """Describes the cache folder of measured times and plans."""
    folder = cache_folder()
    yield Fact("cache", "folder", str(folder), "" if folder.exists() else "made when the first plan is")
    if folder.is_dir():
        owner = folder.stat().st_uid
        mine = owner == os.getuid()
        files = kept(folder)
        size = size_text(sum(file.bytes for file in files))
        remark = "" if mine else "another user: files of others are not read"
        yield Fact("cache", "owner", _name_of(owner), remark, FINE if mine else OFF)
        yield Fact("cache", "size", f"{len(files)} files, {size}")
    reason = _why_not_writable(folder)
    remark = f"{reason}: each process measures and plans anew" if reason else ""
    yield Fact("cache", "writable", not reason, remark, OFF if reason else FINE)


def _name_of(owner: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:  # as in containers
        return str(owner)


def _why_not_writable(folder: Path) -> str:
    """Returns why no file can be written into the cache folder; empty where one can."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return ""
    except OSError as error:
        return f"{existing}: {error.strerror}"


def variables(environment: Mapping[str, str]) -> Iterator[Fact]:
    """The variables of echo's that are set: those that it does not know, or whose values it does not."""
    names = sorted(name for name in environment if name == "ECHO" or name.startswith("ECHO_"))
    stops = False
    for name in names:
        remark, state = _remark_on(name, environment)
        stops = stops or state == STOPS
        yield Fact("variables", name, environment[name], remark, state)
    if not stops:
        try:
            options_from(environment)
        except OptionError as error:
            yield Fact("variables", "all of them", "do not go together", str(error), STOPS)


def _remark_on(name: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Returns the meaning of an environment variable, or why its value is not valid, and the state that this gives."""
    if name in RENAMED and environment[name]:
        return f"this variable is now {RENAMED[name]}", STOPS
    if name not in VARIABLES:
        alike = alike_variable(name)
        return f"no variable of echo's{f'; {alike} is one' if alike else ''}", OFF
    try:
        _check(name, environment)
    except OptionError as error:
        return str(error), STOPS
    return VARIABLES[name][2], FINE


def _check(name: str, environment: Mapping[str, str]) -> None:
    """Raises the error that echo would raise for the value of one of the `VARIABLES`.

    Raises:
        OptionError: nothing could be planned with it.
    """
    option, value = VARIABLES[name][0], value_of(name, environment)
    if option:
        Options.of(**{option: value})
    if option == "policy":
        policy_of(value)
    if name == DEBUG_VARIABLE and value.dump:
        reason = _why_not_writable(Path(value.dump))
        if reason:
            raise OptionError(f"dump: expected a folder to write to, got {value.dump!r}: {reason}")


# The examination behind ``mxecho doctor``: it collects the facts about this machine, and judges whether echo works.

_WIDTH = 120


def examine() -> list[Fact]:
    """Imports MXNet, runs kernels on each GPU, and returns all facts in the order in which they are shown."""
    mxnet_here = mxnet()
    why_not = None if mxnet_here.examined is None else mxnet_here.examined.devices
    return [
        *python(),
        *libraries(),
        *compiler(),
        *mxnet_here.facts,
        *gpus(mxnet_here.wheel, why_not),
        *extras(),
        *cache(),
        *variables(os.environ),
    ]


def render(facts: Sequence[Fact]) -> str:
    """Renders the facts as a table of at most 120 columns, and below it whether echo works."""
    table = Table("echo doctor", "found", "remark")
    for column in table.columns:
        column.overflow = "fold"
    for section in dict.fromkeys(fact.section for fact in facts):
        table.add_section()
        for fact in facts:
            if fact.section == section:
                remark = ": ".join(filter(None, ["" if fact.state == FINE else fact.state, fact.remark]))
                table.add_row(f"{section}: {fact.name}", _word(fact.value), remark)
    return text_of([table, *summary(facts)], _WIDTH)


def summary(facts: Sequence[Fact]) -> list[str]:
    """Whether echo works here, a line for each reason why not, and the names of what is off."""
    stops, off = ([fact for fact in facts if fact.state == state] for state in (STOPS, OFF))
    lines = ["echo cannot work here:" if stops else "echo works here."]
    lines += [f"  {fact.section}, {fact.name}: {fact.remark or _word(fact.value)}" for fact in stops]
    names = ", ".join(f"{fact.section}: {fact.name}" for fact in off)
    return [*lines, *([f"Off: {names}."] if off else [])]


def works(facts: Iterable[Fact]) -> bool:
    """Whether echo can work here."""
    return all(fact.state != STOPS for fact in facts)


def _word(value: str | int | bool) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)
