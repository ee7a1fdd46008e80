"""Output for people: sizes, numbers with nouns, a line of progress, and tables of fixed width by rich."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import sys
import threading
import time
from html import escape
from typing import IO, TYPE_CHECKING, Callable, Iterable, Iterator

if TYPE_CHECKING:
    from rich.console import RenderableType


def complain(text: str) -> None:
    """Prints a line on standard error; nothing where that is closed, since print would use standard output then."""
    if sys.stderr is not None:
        print(text, file=sys.stderr)


# Bytes as people read them: 1 kB is 1,000 bytes, 1 MB a million, in all that echo prints and draws.

KB, MB, GB = 10**3, 10**6, 10**9


def megabytes(size: float, digits: int = 1) -> str:
    """Returns the number of MB, for a column whose heading says so."""
    return f"{size / MB:,.{digits}f}"


def change_text(before: int, after: int) -> str:
    """Returns the change in MB and per cent, for such a column: "-6.0 (-60 %)"; "0.0" if there is none.

    It is that of the rounded numbers; per cent of what is rounded to nothing are left out.
    """
    first, second = round(before / MB, 1), round(after / MB, 1)
    percent = f" ({100 * (after - before) / before:+.0f} %)" if first else ""
    return "0.0" if first == second else f"{second - first:+,.1f}{percent}"


def size_text(size: float) -> str:
    """Returns the size with its unit and three digits or more: "842 MB", "6.3 MB", "17 kB", "900 bytes"."""
    if abs(size) < KB:
        return f"{size:.0f} bytes"
    unit, name = (MB, "MB") if abs(size) >= 0.9995 * MB else (KB, "kB")
    return f"{size / unit:,.{0 if abs(size) >= 99.95 * unit else 1}f} {name}"


def bytes_of(text: str) -> int:
    """Returns the bytes in a text of `size_text`."""
    amount, unit = text.replace(",", "").split()
    return round(float(amount) * {"MB": MB, "kB": KB, "bytes": 1}[unit])


# Texts for people: numbers with nouns, and texts of fixed width as HTML, which notebooks show.


def preformatted(text: str) -> str:
    """The text as an element that keeps its lines and columns."""
    return f'<pre style="line-height: 1.25; overflow-x: auto; white-space: pre">{escape(text)}</pre>'


def counted(number: int, noun: str) -> str:
    """A number with its noun, as "1 feature map" or "3 feature maps"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# A status line for planning that takes longer than two seconds.
#
# It is written without rich, whose import draws from Python's random generator, and on terminals alone.

_PATIENCE = 2.0  # seconds before anything is shown
_INTERVAL = 0.2
_ERASED = "\r\x1b[K"  # back to the first column, and nothing after it


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
    with contextlib.suppress(OSError, ValueError):  # closed meanwhile
        file.write(text)
        file.flush()


# Tables and lines as a plain text of fixed width, by rich.

_LEAST_WIDTH = 80  # columns


def text_of(parts: Iterable[RenderableType], width: int) -> str:
    """Renders these with rich, one below the other, in at most ``width`` columns; brackets in texts are no markup.

    A narrower terminal has the texts in its own width, or in 80 columns.
    """
    from rich.console import Console  # importing it takes long

    if _is_terminal(sys.stdout):
        width = min(width, max(_LEAST_WIDTH, shutil.get_terminal_size().columns))
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, markup=False, emoji=False, highlight=False)
    for part in parts:
        console.print(part)
    return out.getvalue().rstrip("\n")


# Python's random generator, restored after printing through rich, whose import draws from it.


@contextlib.contextmanager
def preserve_python_rng() -> Iterator[None]:
    """Restores the state of Python's random generator at the end."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
