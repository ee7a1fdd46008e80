"""A status line for planning that takes longer than two seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import Callable, Iterator

_PATIENCE = 2.0  # seconds before anything is shown


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Gives a function that takes the current stage; a spinner with it appears on a terminal after two seconds."""
    started, stage, done = time.monotonic(), ["planning"], threading.Event()

    def show() -> None:
        if done.wait(_PATIENCE):
            return
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_terminal:
            print(f"echo: planning ({stage[0]}) ...", file=sys.stderr, flush=True)
            return
        with console.status("echo: planning") as status:
            while not done.wait(0.1):
                status.update(f"echo: planning, {stage[0]} ({time.monotonic() - started:.0f} s)")

    def update(text: str) -> None:
        stage[0] = text

    watcher = threading.Thread(target=show, name="echo-progress", daemon=True)
    watcher.start()
    try:
        yield update
    finally:
        done.set()
        watcher.join()
