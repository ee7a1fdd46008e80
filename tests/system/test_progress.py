"""The status line of planning: on terminals alone, gone at its end, and without a trace in random numbers."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from echo.system import progress as module
from echo.system.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch, patience: float) -> str:
    """What a planning that waits until something was written, if anything can be, has left in the end."""
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "_PATIENCE", patience)
    written = module.threading.Event()
    write = module._write
    monkeypatch.setattr(module, "_write", lambda file, text: (write(file, text), written.set()))
    with progress() as show:
        show("select")
        if patience < 1 and terminal.isatty():
            assert written.wait(30)
    return terminal.getvalue()


def test_a_terminal_shows_the_stage_and_ends_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(Terminal(), monkeypatch, 0.0)
    assert "echo: planning, " in text
    assert text.endswith("\r\x1b[K")


def test_short_planning_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(Terminal(), monkeypatch, 1000.0) == ""


def test_nothing_is_written_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO(), monkeypatch, 0.0) == ""
    monkeypatch.setattr(sys, "stderr", None)
    with progress() as show:
        show("select")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with progress() as show:
        show("select")


PRINTS = """
import random, sys
from echo.plans.frontier import Frontier

import echo.system.progress as progress
random.seed(1)
expected = [random.random(), random.getstate()]
class Terminal:
    def isatty(self): return True
    def write(self, text): done.append(text)
    def flush(self): pass
done, sys.stderr, progress._PATIENCE = [], Terminal(), 0.0
random.seed(1)
with progress.progress():
    while not done: pass
assert "rich" not in sys.modules
str(Frontier((), ()))
from tests.plans.test_plan import plan
str(plan()), repr(plan())
assert "rich.console" in sys.modules
assert [random.random(), random.getstate()] == expected
"""


def test_planning_and_printing_leave_the_random_generator_alone() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
