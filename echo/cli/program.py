"""A program, run in this process as plain Python runs it.

Its surroundings are those of plain Python: its arguments, its folder first on ``sys.path``, itself as ``__main__``,
its own exit code, and tracebacks that start with its own lines.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import pkgutil
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from types import ModuleType, TracebackType
from typing import Any, Callable, Sequence

from echo.system.terminal import complain


def run(program: Sequence[str], command: str = "run") -> int:
    """Runs a script, or with ``-m`` a module, with its own arguments; its exceptions pass through.

    Returns 0 at its end; 1 or 2, with one line on standard error from that ``command``, where it cannot be started.
    """
    words = list(program)
    if not words or words == ["-m"]:
        return refuse("expected a script, or -m and a module", 2, command)
    return _run_module(words[1:], command) if words[0] == "-m" else _run_script(words, command)


def refuse(reason: str, code: int, command: str = "run") -> int:
    """Prints on standard error why a command does not run a program; returns the exit status."""
    complain(f"mxecho {command}: {reason}")
    return code


def _run_module(program: list[str], command: str) -> int:
    try:
        _put_first_on_path(os.getcwd())
    except FileNotFoundError as error:
        return refuse(f"No module named {program[0]}: the working directory is gone: {error.strerror}", 1, command)
    sys.argv = ["-m", *program[1:]]  # what Python shows to a package that is imported on the way
    specs: list[ModuleSpec] = []
    _as_plain_python(lambda: specs.extend(_find(program[0])))
    if not specs:
        return refuse(f"No module named {program[0]}", 1, command)
    sys.argv[0] = specs[0].origin or ""
    return _run_spec(specs[0])


def _run_spec(spec: ModuleSpec) -> int:
    code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    module = _main_module(spec.origin or "", spec)
    return _as_plain_python(lambda: exec(code, vars(module)))


def _find(name: str) -> list[ModuleSpec]:
    """The spec of what ``python -m`` runs for this name; none where there is no module with code."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the package is there, and lacks something
        return []
    if spec is not None and spec.submodule_search_locations is not None:
        return _find(f"{name}.__main__")
    return [spec] if spec is not None and hasattr(spec.loader, "get_code") else []


def _run_script(program: list[str], command: str) -> int:
    path = program[0]
    sys.argv = program
    try:
        importer = pkgutil.get_importer(os.path.abspath(path))
    except FileNotFoundError as error:
        return refuse(f"can't open file {path!r}: the working directory is gone: {error.strerror}", 2, command)
    if importer is not None:  # a folder or an archive
        spec = importer.find_spec("__main__")
        if spec is None:
            return refuse(f"can't find '__main__' module in {path!r}", 1, command)
        _put_first_on_path(os.path.abspath(path))
        return _run_spec(spec)
    try:
        source = _source(path)
    except OSError as error:
        return refuse(f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}", 2, command)
    _put_first_on_path(os.path.dirname(os.path.realpath(path)))
    file = os.path.abspath(path) if sys.version_info >= (3, 9) else path  # as Python itself does it
    module = _main_module(file)
    if path.endswith(".pyc"):
        compiled: Any = SourcelessFileLoader("__main__", file).get_code("__main__")
        return _as_plain_python(lambda: exec(compiled, vars(module)))
    return _as_plain_python(lambda: exec(compile(source, file, "exec", dont_inherit=True), vars(module)))


def _source(path: str) -> bytes:
    with io.open_code(os.path.abspath(path)) as file:
        return file.read()


def _main_module(file: str, spec: ModuleSpec | None = None) -> ModuleType:
    """An empty ``__main__``, which stays: threads and functions called at exit outlive the program's last line."""
    module = ModuleType("__main__")
    vars(module).update(
        __file__=file,
        __spec__=spec,
        __package__=spec.parent if spec else None,
        __cached__=spec.cached if spec else None,
        __loader__=spec.loader if spec else SourceFileLoader("__main__", file),
        __annotations__={},
        __builtins__=builtins,
    )
    sys.modules["__main__"] = module
    return module


def _put_first_on_path(folder: str) -> None:
    """Puts the program's folder where Python had put that of mxecho, unless it was told not to (-P, -I)."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = folder


def _as_plain_python(program: Callable[[], object]) -> int:
    try:
        program()
    except BaseException:
        show = sys.excepthook  # perhaps the program's own

        def show_own_lines(error_type: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
            error.__traceback__ = _own_lines(at)
            show(error_type, error, error.__traceback__)

        sys.excepthook = show_own_lines
        raise
    return 0


def _own_lines(at: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback below this file, which is the program's own."""
    this = _own_lines.__code__.co_filename
    first, later = at, at
    while later is not None:
        if later.tb_frame.f_code.co_filename == this:
            first = later.tb_next
        later = later.tb_next
    return first
