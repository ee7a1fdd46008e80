"""Graphs of a profile side by side as a short table: what MXNet plans, what the executor holds, time."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from echo.report.profile import Profile
from echo.report.usage import MIRROR, PLANNED, STOCK
from echo.system.terminal import megabytes, text_of

_WORDS = {
    STOCK: "stock MXNet",
    MIRROR: "MXNet's mirroring",
    PLANNED: "echo",
}
_WIDTH = 100


def rows(profile: Profile) -> list[dict[str, Any]]:
    """Returns a JSON object a graph: its name, bytes (``planned`` by MXNet, ``total`` held by the executor), and times.

    ``time`` is that of a step as a multiple of the stock step's, ``overhead`` what recomputation adds to a step, as a
    fraction; both are predictions, and None for a graph without one.
    """
    overheads, times = {STOCK: 0.0, PLANNED: profile.plan.overhead}, {STOCK: 1.0, PLANNED: profile.plan.time_ratio}
    return [
        {
            "graph": name,
            "planned": usage.planned,
            "total": usage.total,
            "time": times.get(name),
            "overhead": overheads.get(name),
        }
        for name, usage in ((name, profile.usages[name]) for name in _WORDS if name in profile.usages)
    ]


def render(profile: Profile) -> str:
    """The rows as a table of at most 100 columns, and what the plan has to say."""
    table = Table("training with", title_justify="left")
    for heading in ("planned MB", "of stock", "held in all, MB", "of stock", "predicted time"):
        table.add_column(heading, justify="right")
    graphs = rows(profile)
    stock = next(row for row in graphs if row["graph"] == STOCK)
    for row in graphs:
        cells = [cell for name in ("planned", "total") for cell in _cells(row[name], stock[name])]
        time = "not predicted" if row["time"] is None else f"{100 * (row['time'] - 1):+.1f} %"
        table.add_row(_WORDS[row["graph"]], *cells, time if row is not stock else "")
    return text_of([table, *(f"note: {remark}" for remark in profile.plan.remarks)], _WIDTH)


def _cells(size: int, stock: int) -> tuple[str, str]:
    return megabytes(size), f"{100 * size / stock:.0f} %" if stock else ""
