"""Facts about the machine that take no MXNet: Python, echo itself, compiler, cache folder, variables."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Callable, Iterator, Mapping

from echo import native
from echo.cli.fact import FINE, OFF, STOPS, Fact
from echo.errors import NativeError, OptionError
from echo.kernels import kernels_library, level
from echo.plans.options import OF_KERNELS, TRACE_VARIABLE, VARIABLES, Options, alike_variable, options_from, value_of
from echo.policies import policy_named
from echo.system.files import cache_folder, kept
from echo.system.terminal import size_text

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
    text = environment[name]
    if name in OF_KERNELS:
        pattern, words = OF_KERNELS[name]
        return ("", FINE) if not text or re.fullmatch(pattern, text) else (f"expected {words}, got {text!r}", OFF)
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
        policy_named(value)
    if name == TRACE_VARIABLE and value:
        reason = _why_not_writable(Path(value))
        if reason:
            raise OptionError(f"expected a folder to write to, got {value!r}: {reason}")
