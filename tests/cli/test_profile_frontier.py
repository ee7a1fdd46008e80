"""`mxecho profile --frontier`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from echo.cli import main
from tests.cli.models import SHAPES, check_line, network

pytestmark = pytest.mark.usefixtures("cheap_planning")


def test_budgets_against_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", network(tmp_path), *SHAPES, "--frontier", "--budgets", "3", "--no-fuse"]
    words += ["--max-planning", "20"]
    assert main.main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert 2 <= len(rows) <= 3
    assert [row["total"] for row in rows] == sorted(row["total"] for row in rows)
    assert main.main(words) == 0
    said = capsys.readouterr().out
    assert all(f"{row['total'] / 10**6:,.1f}" in said for row in rows)
    assert all(row["total"] <= row["budget"] for row in rows)
    assert "without echo" in said
    assert "--max-planning: expected seconds above 0" in check_line([*words, "--max-planning", "-1"], capsys, 2)
    assert "--budgets: expected a number from 2 to 100, got 1" in check_line([*words, "--budgets", "1"], capsys, 2)
    said = check_line([*words, "--memory-budget", "1MB"], capsys, 2)
    assert "--memory-budget means nothing for --frontier, which plans for budgets of its own" in said
    for option in ("--save", "--html", "--picture", "--by"):
        assert f"{option} means nothing for --frontier" in check_line([*words, option, "a.svg"], capsys, 2)
