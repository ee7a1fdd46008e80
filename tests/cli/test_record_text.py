"""Sums of recordings as a table."""

from __future__ import annotations

from echo.cli.record_text import render
from echo.recording.windows import summary
from tests.recording.rows_of import row


def cells(text: str, words: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if words in line]
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_two_side_by_side() -> None:
    off = summary([row(0), row(1), row(2, gpu_joules=None)])
    on = summary([row(0), row(1, seconds=0.25, storage=16 * 10**6)])
    text = render({"off": off, "on": {**on, "storage": 16 * 10**6}})
    assert "without echo" in text
    assert cells(text, "ms a step")[1:] == ["50.0", "25.0", "-50 %"]
    assert cells(text, "storage")[1:] == ["64.0", "16.0", "-75 %"]
    assert cells(text, "steps measured")[1:] == ["20", "10", ""]
    assert "energy" not in text, "nobody measured it"


def test_one_alone_and_what_only_one_has() -> None:
    text = render({"run": summary([row(1, gpu_joules=32.0)])})
    assert cells(text, "J a sample")[1:] == ["0.100"]
    text = render({"off": summary([row(1, gpu_joules=32.0)]), "on": summary([row(0)])})
    assert cells(text, "GPU energy")[1:] == ["0.100", "-", ""]
