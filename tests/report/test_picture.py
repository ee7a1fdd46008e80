"""Pictures: PNG and SVG, and names that are neither."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from echo.errors import OptionError
from echo.report.charts import ROLE_COLORS
from echo.report.picture import save, save_over_step, save_segment
from echo.report.segment import FREED, HEAVY, RECOMPUTED, STASHED, Operator, Segment
from echo.report.usage import layer_by
from tests.report.profiles import made_up

pytest.importorskip("vl_convert", reason="needs the extra report")


def test_png_and_svg(tmp_path: Path) -> None:
    profile = made_up(50)
    save(profile, tmp_path / "a.PNG", "some model")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")
    save(profile, tmp_path / "a.svg", "some model", layer_by("layer[0-9]"))
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg")
    for word in ("some model", "layer1", "feature maps", "stock", "echo"):
        assert word in text


def test_memory_over_the_step(tmp_path: Path) -> None:
    save_over_step(made_up(50), tmp_path / "a.svg", "some model")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for word in ("some model", "MB alive", "stock", "echo", "operators of the training step, in their order"):
        assert word in text


def test_a_segment(tmp_path: Path) -> None:
    operators = [
        Operator(f"some_{role.split()[0]}", "op", role, 10**6, role != FREED, 1 + number, number, 0.5)
        for number, role in enumerate((HEAVY, STASHED, FREED, RECOMPUTED))
    ]
    segment = Segment(tuple(operators), ((0, 1), (1, 2), (2, 3)), 30)
    save_segment(replace(made_up(10), segment=segment), tmp_path / "a.svg", "some model")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for word in (
        "some model",
        "some_recomputed",
        "stashed",
        "read by a gradient",
        "op, 3 alike",
        *ROLE_COLORS.values(),
    ):
        assert word in text
    assert text.count('aria-roledescription="rule mark"') == 3
    with pytest.raises(OptionError, match="there is no segment to draw"):
        save_segment(made_up(10), tmp_path / "b.svg")


@pytest.mark.parametrize("name", ["a.jpg", "a", "png"])
def test_other_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"expected a picture NAME\.png or NAME\.svg"):
        save(made_up(10), tmp_path / name)
    assert not (tmp_path / name).exists()
