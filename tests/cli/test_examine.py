"""What `mxecho doctor` found out as a text, and what it comes to."""

from __future__ import annotations

import pytest

from echo.cli import examine
from echo.cli.fact import OFF, STOPS, Fact

FINE_ONE = Fact("Python", "version", "3.11.7")
OFF_ONE = Fact("cache", "writable", False, "read-only file system: each process measures and plans anew", OFF)
STOPS_ONE = Fact("MXNet", "fits echo", False, "expected mxnet 1.9.1, got 1.8.0", STOPS)


@pytest.mark.parametrize(
    ("facts", "works", "summary"),
    [
        ([FINE_ONE], True, ["echo works here."]),
        ([FINE_ONE, OFF_ONE], True, ["echo works here.", "Off: cache: writable."]),
        ([OFF_ONE, STOPS_ONE], False,
         ["echo cannot work here:", "  MXNet, fits echo: expected mxnet 1.9.1, got 1.8.0", "Off: cache: writable."]),
    ],
    ids=["all is well", "something is off", "it cannot work"],
)  # fmt: skip
def test_what_facts_come_to(facts: list[Fact], works: bool, summary: list[str]) -> None:
    assert examine.works(facts) is works
    assert examine.render(facts).splitlines()[-len(summary) :] == summary


def test_what_is_off_is_said_where_it_stands() -> None:
    text = examine.render([FINE_ONE, OFF_ONE])
    (row,) = [line for line in text.splitlines() if "cache: writable" in line and "│" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")][:2] == ["cache: writable", "no"]
    assert "off: read-only file system" in row
