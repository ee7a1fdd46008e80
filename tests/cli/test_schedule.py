"""`mxecho schedule`: its JSON; its text and its errors are tested in `tests/test_api.py`."""

from __future__ import annotations

import json

import pytest

from echo.cli import main
from tests.cli.models import check_line
from tests.data_graphs import ILP, ilp_graph

GRAPH = str(ILP / "vgg16_b176.json")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["schedule", GRAPH, "--budget", "0.9", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["stock_bytes"] == ilp_graph("vgg16_b176").training.planned_bytes
    assert value["peak_bytes"] <= value["budget_bytes"] < value["stock_bytes"]
    assert value["recomputations"] >= value["recomputed_nodes"] > 0
    assert main.main(["schedule", GRAPH, "--budget", "0.9"]) == 0
    assert f"{value['peak_bytes'] / 2**20:.1f} MB, budget" in capsys.readouterr().out


def test_a_budget_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["schedule", GRAPH]) == 2
    assert "Missing option '--budget'" in capsys.readouterr().err
    assert "--budget: expected bytes" in check_line(["schedule", GRAPH, "--budget", "much"], capsys)
