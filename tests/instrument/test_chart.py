"""Recordings as panels: one for each figure that was measured."""

from __future__ import annotations

from pathlib import Path

from echo.instrument.chart import chart, save
from tests.instrument.rows_of import row


def titles(spec: dict[str, object]) -> list[str]:
    return [panel["encoding"]["y"]["title"] for panel in spec["vconcat"]]  # type: ignore[attr-defined]


def test_a_panel_for_each_figure() -> None:
    spec = chart({"off": [row(0), row(1)], "on": [row(0, gpu_joules=10.0, storage=None)]})
    assert titles(spec) == [
        "ms a step",
        "peak of the process, MB",
        "peak of MXNet's storage, MB",
        "power of the GPUs, W",
    ]
    time, _, storage, power = spec["vconcat"]
    assert time["data"]["values"][1] == {"recording": "without echo", "step": 21, "value": 50.0}
    assert [point["recording"] for point in storage["data"]["values"]] == ["without echo"] * 2
    assert power["data"]["values"] == [{"recording": "with echo", "step": 11, "value": 20.0}]
    assert time["encoding"]["color"]["legend"] == {"orient": "top"}
    assert chart({"run": [row()]})["vconcat"][0]["encoding"]["color"]["legend"] is None


def test_a_picture(tmp_path: Path) -> None:
    save({"off": [row(0), row(1)], "on": [row(0), row(1)]}, tmp_path / "both.svg")
    text = (tmp_path / "both.svg").read_text(encoding="utf-8")
    assert "ms a step" in text
    assert "training step" in text
