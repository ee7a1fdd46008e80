"""A plan as text: its sums, its largest layers and groups of decisions, and what cannot be broken by names."""

from __future__ import annotations

from dataclasses import replace

from echo.plans.decisions import RECOMPUTE, STASH, Decision, MissedFusion, Note
from echo.plans.plan import Plan
from tests.plans.test_plan import plan

MB = 1 * 10**6


def rows(text: str) -> list[list[str]]:
    """The cells of all lines that have some."""
    return [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in text.splitlines()]


def many(action: str, sizes: list[int]) -> Plan:
    decisions = tuple(
        Decision(number, f"map{number}", f"op{size}", 0, action, size * MB, 0.001, "why")
        for number, size in enumerate(sizes)
    )
    return plan(decisions=decisions)


def test_memory_by_kind() -> None:
    found = rows(str(plan()))
    assert ["planned by MXNet", "300.0", "120.0"] in found
    assert ["alive at the peak", "250.0", "100.0"] in found
    assert ["map gradients", "50.0", "0.0"] in found, "a kind that is there before alone"
    assert ["recomputed maps", "0.0", "40.0"] in found, "and one that is there after alone"
    assert ["all of it", "341.0", "161.0"] in found


def test_layers_beyond_the_largest_are_summed() -> None:
    before = replace(plan().before, layers={f"layer{number}": (20 - number) * MB for number in range(12)})
    after = replace(plan().after, layers={"layer0": 3 * MB, "layer11": 5 * MB})
    found = rows(str(plan(before=before, after=after)))
    assert ["layer0", "20.0", "3.0"] in found
    assert ["layer7", "13.0", "0.0"] in found
    assert ["4 more", "42.0", "5.0"] in found
    assert not any("layer8" in row for row in found)
    found = rows(str(plan(before=before, after=replace(after, layers={"layer11": 30 * MB}))))
    assert ["layer11", "9.0", "30.0"] in found, "what grows is shown, too"


def test_alike_maps_are_one_row_the_largest_first() -> None:
    found = rows(str(many(RECOMPUTE, [5, 9, 5])))
    groups = [row for row in found if row[0] in ("op5", "op9")]
    assert groups == [["op5", "2", "10.0", "2.00", "map0", "why"], ["op9", "1", "9.0", "1.00", "map1", "why"]]


def test_stashed_group_has_no_time_in_its_row() -> None:
    (row,) = (row for row in rows(str(many(STASH, [5]))) if row[0] == "op5")
    assert row == ["op5", "1", "5.0", "", "map0", "why"]


def test_no_more_than_eight_groups() -> None:
    found = rows(str(many(STASH, list(range(1, 12)))))
    assert [row[0] for row in found if row[0].startswith("op")] == [f"op{size}" for size in range(11, 3, -1)]


def test_names_are_no_markup_and_lines_stay_short() -> None:
    strange = replace(plan().decisions[0], name="[bold]" + "long" * 100 + ":smile:", reason="[/red]")
    text = str(plan(decisions=(strange,), notes=(Note("[a note]"),)))
    assert "[bold]" in text
    assert "[/red]" in text
    assert "note: [a note]" in text
    assert max(map(len, text.splitlines())) <= 120


def test_near_misses_are_a_table_with_counts() -> None:
    missed = (*(MissedFusion(number, f"cell{number}", "lstm_cell", "an inner map is read") for number in range(3)),
              MissedFusion(9, "gru", "gru_cell", "a wide state"),
              MissedFusion(7, "b", "bias_act", "a quiet reason", quiet=True))  # fmt: skip
    text = str(plan(missed=missed, notes=(Note("other"),)))
    assert ["lstm_cell", "3", "cell0", "an inner map is read"] in rows(text)
    assert ["gru_cell", "1", "gru", "a wide state"] in rows(text)
    assert "quiet" not in text
    assert [line for line in text.splitlines() if line.startswith("note: ")] == ["note: other"]
