"""The comparison of echo with torch's own budgets, on rows whose results are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.torch_tables import compared, converted_table, draw, frontier_table


def row(by: str, peak: int, overhead: float, **more: Any) -> dict[str, Any]:
    kind = {"model": "net", "fused": False, "nodes": 9, "stock_bytes": 100_000_000, "planning_seconds": 2.0}
    return {**kind, "by": by, "peak_bytes": peak, "overhead": overhead, **more}


ROWS = [
    row("torch, flops", 80_000_000, 0.1),
    row("torch, flops", 60_000_000, 0.4),
    row("torch, measured", 70_000_000, 0.2),
    row("torch, measured", 90_000_000, 0.0),
    row("echo", 79_000_000, 0.05, budget_bytes=80_000_000),
    row("echo", 70_000_000, 0.15, budget_bytes=70_000_000),
    row("echo", 59_000_000, 0.2, budget_bytes=60_000_000),
    row("echo", 48_000_000, 0.5, budget_bytes=48_000_000, planning_seconds=4.0),
    {**row("echo", 0, 0.0), "budget_bytes": 30_000_000, "least_bytes": 40_000_000},
]
del ROWS[-1]["peak_bytes"], ROWS[-1]["overhead"]


def test_recomputation_is_compared_at_no_higher_peaks() -> None:
    found = compared(ROWS)
    assert found.least == ((60_000_000, 0.4), (48_000_000, 0.5))
    assert found.echo_at_least == 0.2
    assert found.ratios == pytest.approx((0.5, 0.75, 0.5)), "there is none of torch's at the last"
    assert found.planning == (2.0, 2.0)


def test_table_has_both_costs_of_pointwise_operators() -> None:
    rows = [{**each, "fused": fused} for each in ROWS for fused in (False, True)]
    line = frontier_table({"rows": rows}).splitlines()[-1]
    figures = ["60.0 at 40.0 %", "20.0 %", "48.0 at 50.0 %", "0.50 (0.75)", "0.50 (0.75)", "2.0", "2.0"]
    assert line == f"| {' | '.join(['net', '9', '100.0', *figures])} |"


def test_converted_model_is_compared_with_the_bytes_of_mxnet_with_echo() -> None:
    figures = {"mxnet, stock": (400, 2.0), "mxnet, echo": (100, 1.0), "eager": (300, 1.5)}
    rows = [{"by": by, "peak_bytes": mb * 1_000_000, "step_seconds": seconds} for by, (mb, seconds) in figures.items()]
    rows += [{"by": "echo", "peak_bytes": 80_000_000, "step_seconds": 0.5, "predicted_bytes": 84_000_000}]
    line = converted_table({"rows": [{"model": "net", "threads": 1, **row} for row in rows]}).splitlines()[-1]
    assert line.startswith("| net | 1 | 400.0 MB, 2000 ms | 100.0 MB, 1000 ms | 300.0 MB, 1500 ms |")
    assert line.endswith("| 80.0 MB, 500 ms | +5.0 % | 0.80 | 4.0x |")


def test_picture_has_a_panel_for_each_model(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the picture")
    draw([{**each, "fused": True} for each in ROWS], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
