"""Recordings as a picture: time, memory and power over the training steps, one line a recording."""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping, Sequence

from echo.instrument.windows import Row
from echo.report.charts import GRAPH_COLORS, PRINT, VEGA_LITE_SCHEMA, WIDTH
from echo.report.pages import write
from echo.report.usage import PLANNED, STOCK
from echo.system.terminal import MB

_HEIGHT = 160
_WORDS = {"run": "recorded", "off": "without echo", "on": "with echo"}
_COLORS = {"on": GRAPH_COLORS[PLANNED], "off": GRAPH_COLORS[STOCK], "run": GRAPH_COLORS[PLANNED]}
_PANELS: Mapping[str, Callable[[Row], float | None]] = {
    "ms a step": lambda row: row.ms_a_step,
    "peak of the process, MB": lambda row: row.process / MB,
    "peak of MXNet's storage, MB": lambda row: None if row.storage is None else row.storage / MB,
    "memory of the GPUs, MB": lambda row: None if row.device is None else row.device / MB,
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
    title = " and ".join(_WORDS.get(name, name) for name in recordings)
    return {
        "$schema": VEGA_LITE_SCHEMA,
        "background": "white",
        "title": f"A training, step by step: {title}",
        "config": PRINT,
        "vconcat": panels,
    }


def _panel(title: str, points: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    named = {name: _WORDS.get(name, name) for name in names}
    color = {
        "field": "recording", "type": "nominal", "title": None,
        "scale": {"domain": list(named.values()), "range": [_COLORS.get(name, GRAPH_COLORS[STOCK]) for name in names]},
    }  # fmt: skip
    points = [{**point, "recording": named[str(point["recording"])]} for point in points]
    from_zero = {"scale": {"zero": True}}
    return {
        "data": {"values": points},
        "width": WIDTH - 200,
        "height": _HEIGHT,
        "mark": {"type": "line", "interpolate": "step-before"},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": "training step", **from_zero},
            "y": {"field": "value", "type": "quantitative", "title": title, **from_zero},
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
