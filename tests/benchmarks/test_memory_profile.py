"""The picture of the README that only the benchmark of memory profiles draws."""

from __future__ import annotations

from pathlib import Path

from benchmarks.memory_profile import over_step
from echo.report.pages import write
from tests.report.profiles import made_up


def test_picture_over_the_step_has_a_line_for_each_graph(tmp_path: Path) -> None:
    write(lambda: over_step(made_up(50), "some model"), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for word in ("some model", "MB alive", "stock", "echo", "operators of the training step, in their order"):
        assert word in text
