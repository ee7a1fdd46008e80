"""The committed results of the papers' evaluation: their expectations, and the picture made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.paper import pictures, published
from benchmarks.paper.figures import BARS, faults, headline
from benchmarks.paper.footprint import NAME, WAYS
from benchmarks.paper.largest import LIMIT
from benchmarks.paper.workloads import WORKLOADS
from benchmarks.record import load
from echo.report.pages import write

ROWS = load(NAME)["rows"]


def test_every_workload_is_there_in_every_way() -> None:
    assert [row["workload"] for row in ROWS] == list(WORKLOADS)
    figures = {"workload", "at_memonger", *WAYS}
    assert all(row.keys() - {"measured"} == figures for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["workload"]))
def test_nothing_is_above_stock_the_mirror_or_memonger(row: dict[str, object]) -> None:
    assert faults(row) == []


def test_memory_falls_more_than_the_authors_report() -> None:
    for name, bars in BARS.items():
        assert all(bar is None or value > bar for value, bar in zip(headline(ROWS, name, "net"), bars))
        total = headline(ROWS, name)
        assert total[0] > published.MEAN
        assert total[1] > published.LARGEST
    assert all(row["bits"]["overhead"] <= 0.15 for row in ROWS)


@pytest.mark.parametrize("quantity", ["batch", "layers"])
def test_default_fits_models_8_times_larger_in_12_gb_than_stock(quantity: str) -> None:
    row = next(row for row in load("paper_largest")["rows"] if row["quantity"] == quantity)
    ways = {name: found for name, found in row.items() if name not in ("quantity", "measured")}
    assert all(found["total"] <= LIMIT < found["next_total"] for found in ways.values())
    assert ways["default"]["largest"] >= 8 * ways["stock"]["largest"]


def test_the_picture_is_made_of_the_results(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra report")
    rows = load("paper_sweeps")["rows"]
    write(lambda: pictures.spec(rows), tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_text(encoding="utf-8") == pictures.PATH.read_text(encoding="utf-8")
    panels = [panel["data"]["values"] for panel in pictures.spec(rows)["hconcat"]]
    assert {point["graph"] for point in panels[2]} == {pictures.STOCK, pictures.AUTHORS, *pictures.NAMES.values()}
