"""A status line for planning that takes longer than two seconds.

It is written without rich, whose import draws from Python's random generator, and on terminals alone.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import IO, Callable, Iterator

_PATIENCE = 2.0  # seconds before anything is shown
_INTERVAL = 0.2
_ERASED = "\r\x1b[K"  # back to the first column, and nothing behind it


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Gives a function that takes the current stage; a line with it appears on a terminal after two seconds."""
    terminal = sys.stderr
    if not _is_terminal(terminal):
        yield lambda _: None
        return
    started, stage, done = time.monotonic(), ["planning"], threading.Event()

    def show() -> None:
        wait = _PATIENCE
        while not done.wait(wait):
            wait = _INTERVAL
            _write(terminal, f"{_ERASED}echo: planning, {stage[0]} ({time.monotonic() - started:.0f} s)")
        if wait == _INTERVAL:
            _write(terminal, _ERASED)

    def update(text: str) -> None:
        stage[0] = text

    watcher = threading.Thread(target=show, name="echo-progress", daemon=True)
    watcher.start()
    try:
        yield update
    finally:
        done.set()
        watcher.join()


def _is_terminal(file: IO[str] | None) -> bool:
    try:
        return file is not None and file.isatty()
    except (AttributeError, ValueError):  # something else in its place, or closed
        return False


def _write(file: IO[str], text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed meanwhile: nobody looks
        file.write(text)
        file.flush()
