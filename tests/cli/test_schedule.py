"""`mxecho schedule`: its JSON; its text and its errors are tested in `tests/test_api.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from echo.cli import main
from tests.cli.models import check_line
from tests.support.data_graphs import ILP, ilp_graph

GRAPH = str(ILP / "vgg16_b176.json")


def test_json_has_the_bytes_of_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["schedule", GRAPH, "--budget", "0.9", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["stock_bytes"] == ilp_graph("vgg16_b176").training.planned_bytes
    assert value["peak_bytes"] <= value["budget_bytes"] < value["stock_bytes"]
    assert value["recomputations"] >= value["recomputed_nodes"] > 0
    assert main.main(["schedule", GRAPH, "--budget", "0.9"]) == 0
    assert f"{value['peak_bytes'] / 10**6:,.0f} MB, budget" in capsys.readouterr().out


def test_a_budget_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["schedule", GRAPH]) == 2
    assert "Missing option '--budget'" in capsys.readouterr().err
    assert "--budget: expected whole bytes" in check_line(["schedule", GRAPH, "--budget", "much"], capsys, 2)


def test_example_of_the_guide_prints_what_the_guide_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = Path(__file__).parents[2].joinpath("docs", "guides", "schedule.md").read_text(encoding="utf-8")
    example, shown = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("python", "text"))  # type: ignore[index]
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert capfd.readouterr().out == shown
    assert main.main(["schedule", "graph.json", "--budget", "130MB", "--json"]) == 0
    fields = set(json.loads(capfd.readouterr().out))
    assert fields <= set(re.findall(r"`(\w+)`", text.split("## What comes out")[1]))
