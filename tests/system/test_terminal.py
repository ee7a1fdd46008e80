"""Bytes as text: MB of a million bytes, and smaller units for what is small."""

from __future__ import annotations

import contextlib
import io
import random
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from rich.table import Table

from echo.system import terminal as module
from echo.system.terminal import (
    bytes_of,
    change_text,
    complain,
    counted,
    megabytes,
    preformatted,
    preserve_python_rng,
    progress,
    size_text,
    text_of,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (17_400, "17.4 kB"), (499_600, "500 kB"),
        (999_499, "999 kB"), (999_500, "1.0 MB"), (1_000_000, "1.0 MB"), (6_340_000, "6.3 MB"), (99_949_999, "99.9 MB"),
        (99_950_000, "100 MB"), (842 * 10**6, "842 MB"), (12_345_678_901, "12,346 MB"), (-2_000_000, "-2.0 MB"),
    ],
)  # fmt: skip
def test_size_has_the_unit_that_fits(size: int, text: str) -> None:
    assert size_text(size) == text
    assert abs(bytes_of(text) - size) <= 0.051 * abs(size)


def test_change_is_in_megabytes_and_per_cent_of_what_was_there() -> None:
    assert change_text(10 * 10**6, 4 * 10**6) == "-6.0 (-60 %)"
    assert (change_text(0, 2 * 10**6), change_text(5, 5)) == ("+2.0", "0.0")


def test_change_from_next_to_nothing_has_no_per_cent_and_fits_the_rounded_numbers() -> None:
    assert change_text(5_000, 1_600_000) == "+1.6"
    assert change_text(40_000, 60_000) == "+0.1", "0.0 and 0.1 stand next to it"
    assert change_text(12_810_000, 12_840_000) == "0.0"


def test_megabytes_are_millions() -> None:
    assert (megabytes(335 * 10**6), megabytes(2**30, 0)) == ("335.0", "1,074")


def test_every_character_is_kept() -> None:
    text = "a < b  & c > \"d\"\n  'e' │ é"
    element = ElementTree.fromstring(preformatted(text))
    assert element.tag == "pre"
    assert element.text == text


def test_a_number_has_its_noun() -> None:
    assert [counted(number, "gradient") for number in (0, 1, 2)] == ["0 gradients", "1 gradient", "2 gradients"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch, patience: float) -> str:
    """The final terminal of a planning that waits until something was written, if anything can be."""
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


def test_progress_without_a_terminal_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
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

import echo.system.terminal as progress
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


def test_parts_stand_below_each_other_as_they_are() -> None:
    table = Table("name")
    table.add_row("[b]:smile: 12")
    lines = text_of([table, "note: [red]x[/red] 7"], 60).splitlines()
    assert [line.strip("│┃ ") for line in lines][1::2] == ["name", "[b]:smile: 12", "note: [red]x[/red] 7"]
    assert "\x1b" not in "".join(lines)


def test_no_line_is_wider_than_asked_for() -> None:
    assert max(map(len, text_of(["word " * 40], 30).splitlines())) <= 30


def test_numbers_drawn_inside_are_drawn_again() -> None:
    state = random.getstate()
    with contextlib.suppress(KeyError), preserve_python_rng():
        random.random()
        raise KeyError
    assert random.getstate() == state


@pytest.mark.parametrize(("columns", "longest"), [("20", 80), ("90", 90), ("200", 100)])
def test_tables_fit_the_terminal(columns: str, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = Table("word " * 60)
    assert max(map(len, text_of([table], 100).splitlines())) == 100
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert max(map(len, text_of([table], 100).splitlines())) == longest


def test_line_for_standard_error_that_is_closed_is_not_printed_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    complain("echo: this is wrong")
    assert capsys.readouterr() == ("", "echo: this is wrong\n")
    monkeypatch.setattr("sys.stderr", None)
    complain("echo: this is wrong")
    assert capsys.readouterr().out == ""
