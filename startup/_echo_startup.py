"""Loaded by echo_startup.pth where ECHO is set: activates echo right after the program has imported mxnet.

Nothing of mxnet or echo is imported before, and nothing at all where the program never imports mxnet. An error costs
one line on standard error.
"""

import sys

_ON, _OFF = ("1", "true", "on", "yes"), ("", "0", "false", "off", "no")


class _Watcher:
    """Finds mxnet as if it were not there, and adds a step behind its import."""

    def find_spec(self, name, path=None, target=None):
        if name != "mxnet":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_activate(module):
            execute(module)
            _activate()

        spec.loader.exec_module = execute_and_activate
        return spec


def _activate():
    try:
        from echo.runtime.transparent import enable_from_environment

        enable_from_environment()
    except Exception as error:
        print(f"echo: not active: {type(error).__name__}: {error}", file=sys.stderr)


_started = []


def watch():
    """Starts watching for mxnet where ECHO is on. Python may run a .pth line twice."""
    if _started:
        return
    _started.append(True)
    import os

    word = os.environ.get("ECHO", "").strip().lower()
    if word not in (*_ON, *_OFF):
        print(f"echo: not active: ECHO: expected one of {', '.join((*_ON, *_OFF[1:]))}, got {word!r}", file=sys.stderr)
    if word in _ON:
        sys.meta_path.insert(0, _Watcher())
