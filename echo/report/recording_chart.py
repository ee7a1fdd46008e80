"""Recordings as a picture: time, memory and power over the training steps, one line a recording."""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping, Sequence

from echo.recording.rows import Row
from echo.report.charts import VEGA_LITE_SCHEMA, WIDTH
from echo.report.picture import write

_HEIGHT = 160
_PANELS: Mapping[str, Callable[[Row], float | None]] = {
    "ms a step": lambda row: row.ms_a_step,
    "memory of the process, MB": lambda row: row.resident / 2**20,
    "MXNet's storage, MB": lambda row: None if row.storage is None else row.storage / 2**20,
    "memory of the GPUs, MB": lambda row: None if row.device is None else row.device / 2**20,
    "power of the GPUs, W": lambda row: row.gpu_watts,
    "power of the CPUs, W": lambda row: row.cpu_watts,
}


def chart(recordings: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """A Vega-Lite specification: a panel for each figure that some recording has."""
    panels = []
    for title, value in _PANELS.items():
        points = [
            {"recording": name, "step": row.step, "value": round(figure, 4)}
            for name, rows in recordings.items()
            for row in rows
            if (figure := value(row)) is not None
        ]
        if points:
            panels.append(_panel(title, points, list(recordings)))
    return {"$schema": VEGA_LITE_SCHEMA, "background": "white", "vconcat": panels}


def _panel(title: str, points: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    color = {"field": "recording", "type": "nominal", "title": None, "scale": {"domain": list(names)}}
    return {
        "data": {"values": list(points)},
        "width": WIDTH - 200,
        "height": _HEIGHT,
        "mark": {"type": "line", "interpolate": "step-before"},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": "training step"},
            "y": {"field": "value", "type": "quantitative", "title": title},
            "color": {**color, "legend": {"orient": "top"} if len(names) > 1 else None},
        },
    }


def save(recordings: Mapping[str, Sequence[Row]], path: str | os.PathLike[str]) -> None:
    """Writes the picture as PNG or SVG, as the end of the name says.

    Raises:
        OptionError: the name ends in another way.
        UnsupportedError: vl-convert-python is not there.
    """
    write(lambda: chart(recordings), path)
