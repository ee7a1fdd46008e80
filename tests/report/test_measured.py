"""What was measured stands graph by graph, with what nothing accounts for."""

from __future__ import annotations

from dataclasses import replace

from echo.report.measured import REST, rows
from echo.report.usage import DEVICE, PROCESS, STORAGE
from tests.report.profiles import MB, made_up


def test_a_row_for_each_thing_and_the_rest_in_percent() -> None:
    profile = made_up(30)
    stock, planned = profile.usages["stock"], profile.usages["echo"]
    grown = stock.total + 10 * MB
    usages = {"stock": replace(stock, measured={PROCESS: grown, STORAGE: 1536 * MB}), "echo": planned}
    assert rows(replace(profile, usages=usages)) == [
        (PROCESS, [f"{grown / MB:,.1f}", "-"]),
        (STORAGE, ["1,536.0", "-"]),
        (REST, [f"10.0 ({100 * 10 * MB / grown:.1f} %)", "-"]),
    ]
    usages["echo"] = replace(planned, measured={PROCESS: 7, DEVICE: planned.total * 2})
    assert rows(replace(profile, usages=usages))[-1][1][1].endswith(" (50.0 %)"), "of the device"


def test_without_measurements_there_are_no_rows() -> None:
    assert rows(made_up(30)) == []
    profile = made_up(30)
    nothing = replace(profile.usages["stock"], measured={STORAGE: MB})
    assert rows(replace(profile, usages={"stock": nothing}))[-1] == (REST, ["-"])
