"""Watches for the import of mxnet: prepares it (`echo.compat`), and switches transparent mode on after it.

One source, two places: `echo.startup`, and a copy named ``_echo_startup`` in site-packages, for the finder in
echo_startup.pth. That copy must not import the package, which costs more than a start-up may: nothing of mxnet or
echo is imported here before a program imports mxnet, and nothing at all if it never does. The variables ECHO and
ECHO_RECORD are read when mxnet is imported, or echo after it, so that a script may set them. An error costs one line on
standard error; with ECHO_STRICT=1, the import of mxnet.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_ON, _OFF = ("1", "true", "on", "yes"), ("", "0", "false", "off", "no")
_said: list[str] = []  # values of ECHO that make no sense, each of which is told once


class _Watcher:
    """A finder before all others that adds a step before and a step after the execution of mxnet."""

    is_echo_watcher = True  # how another copy of this module knows it, and the finder in echo_startup.pth

    def __init__(self) -> None:
        self.prepares = self.activates = False  # what code asks for, next to the environment
        self.watches = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Returns the other finders' spec of mxnet, and watches its import, which may come later or never."""
        if name != "mxnet":
            return None
        activates, records = _wishes()
        if not (activates or records or self.activates or self.prepares):
            return None
        for finder in list(sys.meta_path):
            find = None if hasattr(finder, "is_echo_watcher") else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                self._watch(spec, activates or self.activates, records)
                return spec
        return None

    def _watch(self, spec: ModuleSpec, activates: bool, records: bool) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:  # a folder of that name, without code
            return

        def execute_watched(module: ModuleType) -> None:
            self.watches = True
            _prepare()
            execute(module)
            sys.meta_path[:] = [finder for finder in sys.meta_path if not hasattr(finder, "is_echo_watcher")]
            if activates:
                _activate(module, before_all=True)
            if records:
                _record()

        loader.exec_module = execute_watched


def _say(text: str) -> None:
    if sys.stderr is not None:  # where it is closed, print would write to the program's output
        print(text, file=sys.stderr)


def _wishes() -> tuple[bool, bool]:
    """Whether the environment asks, now, for transparent mode and for a recording."""
    import os

    word = os.environ.get("ECHO", "").strip().lower()
    if word not in (*_ON, *_OFF) and word not in _said:
        _said.append(word)
        _say(f"echo: not active: ECHO: expected one of {', '.join((*_ON, *_OFF[1:]))}, got {word!r}")
    return word in _ON, bool(os.environ.get("ECHO_RECORD"))


def _other_echo() -> str:
    """Returns the file of a module named echo that the program has, or would import, instead of this package.

    Nothing of it runs. Empty if there is none, and if there is no such module at all.
    """
    import os
    from importlib.util import find_spec

    try:
        spec = find_spec("echo")
    except ValueError:  # a module that the program made itself
        return "one that the program made"
    if spec is None:
        return ""
    folder = os.path.dirname(spec.origin or "")
    is_package = os.path.isfile(os.path.join(folder, "runtime", "transparent.py"))
    return "" if is_package else str(spec.origin or next(iter(spec.submodule_search_locations or ()), "a folder"))


def _prepare() -> None:
    if _other_echo():
        return  # _activate says so
    try:
        from echo import compat
    except Exception:
        return  # _activate says so
    message = compat.prepare()
    if message:
        _say(f"echo: {message}")


def _activate(mxnet: ModuleType, before_all: bool = False) -> None:
    other = _other_echo()
    if other:
        _say(f"echo: not active: `import echo` finds another module of this name, {other}")
        return
    try:
        from echo import compat

        compat.check_version(getattr(mxnet, "__version__", "unknown"))  # before echo looks for anything inside it
        from echo.runtime.transparent import enable_from_environment

        enable_from_environment(before_all)
    except Exception as error:
        import os

        if os.environ.get("ECHO_STRICT", "").strip().lower() in _ON:
            raise
        kind = "" if type(error).__module__ == "echo.errors" else f"{type(error).__name__}: "
        _say(f"echo: not active: {kind}{error}")


def _record() -> None:
    other = _other_echo()
    if other:
        _say(f"echo: nothing is recorded: `import echo` finds another module of this name, {other}")
        return
    try:
        from echo.instrument.recording import record_from_environment

        record_from_environment()
    except Exception as error:
        _say(f"echo: nothing is recorded: {type(error).__name__}: {error}")


def watcher() -> Any:
    """Returns the watcher of the process, which replaces the finder in echo_startup.pth. Python may run that twice."""
    ours: list[Any] = [finder for finder in sys.meta_path if hasattr(finder, "is_echo_watcher")]
    found = next((finder for finder in ours if not isinstance(finder, type)), None)
    if found is None:
        found = _Watcher()
        place = sys.meta_path.index(ours[0]) if ours else 0
        sys.meta_path.insert(place, found)
    for finder in ours:
        if finder is not found:
            sys.meta_path.remove(finder)
    return found


def watch(activates: bool = False) -> None:
    """Prepares mxnet when it is imported; then activates transparent mode if ``activates``, or if ECHO says so.

    With ECHO_RECORD its training steps are recorded (`echo.instrument.recording`). If mxnet is there already, it needs
    no preparation any more.
    """
    if "mxnet" not in sys.modules:
        new = watcher()
        new.prepares, new.activates = True, new.activates or activates
        return
    wants, records = _wishes()
    if any(getattr(finder, "watches", False) for finder in sys.meta_path):
        return  # mxnet is being imported, and this package for that
    if activates or wants:
        _activate(sys.modules["mxnet"])
    if records:
        _record()
