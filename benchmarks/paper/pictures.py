"""Draws results/paper_sweeps.svg: by how often memory falls over layers and hidden units, and memory over the batch.

    python -m benchmarks.paper.pictures

The points of the authors stand next to ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.paper import published
from benchmarks.paper.figures import Row, times
from benchmarks.record import RESULTS, load, parser
from echo.report.charts import VEGA_LITE_SCHEMA
from echo.report.pages import write

PATH = RESULTS / "paper_sweeps.svg"
STOCK, AUTHORS = "stock MXNet", "the authors'"
NAMES = {"default": "echo", "unfused": "echo, unfused", "echo": "published rule"}
_COLORS = {STOCK: "#9c9489", "echo": "#2f7ed8", "echo, unfused": "#3f9c55", "published rule": "#e0861a",
           AUTHORS: "#222222"}  # fmt: skip
_WIDTH, _HEIGHT = 230, 220
Point = dict[str, Any]


def spec(rows: Sequence[Row]) -> dict[str, Any]:
    """The three panels as a Vega-Lite specification."""
    panels = [
        _panel(_falls(rows, "layers"), "layers of encoder and decoder", "memory falls by, times"),
        _panel(_falls(rows, "hidden"), "hidden units", "memory falls by, times"),
        _panel(_held(rows), "sentences in a batch", "GB that a step holds"),
    ]
    title = 'Translation with attention ("tbd"): less memory by layers, units and batch'
    return {"$schema": VEGA_LITE_SCHEMA, "background": "white", "title": title, "hconcat": panels}


def _falls(rows: Iterable[Row], sweep: str) -> list[Point]:
    ours = [
        _point(NAMES[name], row["value"], times(row, name)) for row in rows if row["sweep"] == sweep for name in NAMES
    ]
    return ours + [_point(AUTHORS, value, fall) for value, fall in published.SWEPT[sweep].items()]


def _held(rows: Iterable[Row]) -> list[Point]:
    names = {"stock": STOCK, **NAMES}
    swept = [row for row in rows if row["sweep"] == "batch"]
    ours = [_point(names[name], row["value"], row[name]["total"] / 2**30) for row in swept for name in names]
    return ours + [_point(AUTHORS, batch, held) for batch, held in published.BATCHES.items()]


def _point(name: str, x: int, y: float) -> Point:
    return {"graph": name, "x": x, "y": round(y, 3)}


def _panel(points: Sequence[Point], x: str, y: str) -> dict[str, Any]:
    scale = {"domain": list(_COLORS), "range": list(_COLORS.values())}
    values = sorted({point["x"] for point in points})
    return {
        "data": {"values": list(points)},
        "width": _WIDTH,
        "height": _HEIGHT,
        "mark": {"type": "line", "point": {"filled": True, "size": 40}},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": x, "axis": {"values": values}},
            "y": {"field": "y", "type": "quantitative", "title": y},
            "color": {"field": "graph", "type": "nominal", "scale": scale, "legend": {"orient": "top", "title": None}},
            "strokeDash": {"condition": {"test": f'datum.graph == "{AUTHORS}"', "value": [4, 4]}, "value": [1, 0]},
        },
    }


def draw() -> None:
    """Writes the picture from the results that are there."""
    rows = load("paper_sweeps")["rows"]
    write(lambda: spec(rows), PATH)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    draw()
