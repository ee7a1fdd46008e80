"""Graphs side by side: numbers of a profile that is made here."""

from __future__ import annotations

from echo.cli.compare_text import render, rows
from tests.report.profiles import made_up

PROFILE = made_up(40)


def test_rows_are_the_usages() -> None:
    found = rows(PROFILE)
    assert [row["graph"] for row in found] == list(PROFILE.usages)
    for row in found:
        usage = PROFILE.usages[row["graph"]]
        assert (row["planned"], row["total"]) == (usage.planned, usage.total)
    assert found[0]["overhead"] == 0.0


def test_the_table() -> None:
    lines = render(PROFILE).splitlines()
    assert max(map(len, lines)) <= 100
    (own,) = [line for line in lines if "stock MXNet" in line]
    assert "100 %" in own
