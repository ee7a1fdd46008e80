"""Watches for the import of mxnet: prepares it (`echo.compat`), and switches transparent mode on after it.

One source, two places: `echo.startup`, and a copy named ``_echo_startup`` in site-packages, for the line in
echo_startup.pth. That copy must not import the package, which costs more than a start-up may: so nothing of mxnet or
echo is imported here before a program imports mxnet, and nothing at all where it never does. An error costs one line
on standard error; with ECHO_STRICT=1, the import of mxnet.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_ON, _OFF = ("1", "true", "on", "yes"), ("", "0", "false", "off", "no")


class _Watcher:
    """A finder before all others that adds a step before and a step after the execution of mxnet."""

    is_echo_watcher = True  # how another copy of this module knows it

    def __init__(self) -> None:
        self.activates = self.records = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Returns the other finders' spec of mxnet, and watches its import, which may come later or never."""
        if name != "mxnet":
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                self._watch(spec)
                return spec
        return None

    def _watch(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:  # a folder of that name, without code
            return

        def execute_watched(module: ModuleType) -> None:
            _prepare()
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            if self.activates:
                _activate(module)
            if self.records:
                _record()

        loader.exec_module = execute_watched


def _prepare() -> None:
    try:
        from echo import compat
    except Exception:
        return  # _activate says so
    message = compat.prepare()
    if message:
        print(f"echo: {message}", file=sys.stderr)


def _activate(mxnet: ModuleType) -> None:
    try:
        from echo import compat

        compat.check_version(getattr(mxnet, "__version__", "unknown"))  # before echo looks for anything inside it
        from echo.runtime.transparent import enable_from_environment

        enable_from_environment()
    except Exception as error:
        import os

        if os.environ.get("ECHO_STRICT", "").strip().lower() in _ON:
            raise
        kind = "" if type(error).__module__ == "echo.errors" else f"{type(error).__name__}: "
        print(f"echo: not active: {kind}{error}", file=sys.stderr)


def _record() -> None:
    try:
        from echo.runtime.recording import record_from_environment

        record_from_environment()
    except Exception as error:
        print(f"echo: nothing is recorded: {type(error).__name__}: {error}", file=sys.stderr)


def watch(activates: bool, records: bool = False) -> None:
    """Prepares mxnet when it is imported, and then activates transparent mode if ``activates``.

    With ``records`` its training steps are recorded (`echo.runtime.recording`).

    Where mxnet is there already, it needs no preparation any more.
    """
    if "mxnet" in sys.modules:
        if activates:
            _activate(sys.modules["mxnet"])
        if records:
            _record()
        return
    watcher: Any = next((finder for finder in sys.meta_path if hasattr(finder, "is_echo_watcher")), None)
    if watcher is None:
        watcher = _Watcher()
        sys.meta_path.insert(0, watcher)
    watcher.activates = watcher.activates or activates
    watcher.records = watcher.records or records


_called: list[bool] = []


def watch_if_on() -> None:
    """Called by echo_startup.pth: watches where the variable ECHO is on. Python may run a .pth line twice."""
    if _called:
        return
    _called.append(True)
    import os

    word, records = os.environ.get("ECHO", "").strip().lower(), bool(os.environ.get("ECHO_RECORD"))
    if word in _ON or records:
        watch(word in _ON, records)
    if word not in (*_ON, *_OFF):
        print(f"echo: not active: ECHO: expected one of {', '.join((*_ON, *_OFF[1:]))}, got {word!r}", file=sys.stderr)
