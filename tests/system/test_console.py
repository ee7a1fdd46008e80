"""Tables and lines as text."""

from __future__ import annotations

from rich.table import Table

from echo.system.console import text_of


def test_parts_stand_below_each_other_as_they_are() -> None:
    table = Table("name")
    table.add_row("[b]:smile: 12")
    lines = text_of([table, "note: [red]x[/red] 7"], 60).splitlines()
    assert [line.strip("│┃ ") for line in lines][1::2] == ["name", "[b]:smile: 12", "note: [red]x[/red] 7"]
    assert "\x1b" not in "".join(lines)


def test_no_line_is_wider_than_asked_for() -> None:
    assert max(map(len, text_of(["word " * 40], 30).splitlines())) <= 30
