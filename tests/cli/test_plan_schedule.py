"""`mxecho schedule`: its JSON, its text, and its errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from echo.cli import main
from echo.cli.plan import held_at_peak, render_schedule
from echo.policies import RecomputeAll, RecomputeNone
from echo.policies.data_graph import DataGraph, Solved, problem_of_graph, solve_graph
from echo.system.terminal import size_text
from tests.cli.models import check_line
from tests.support.data_graphs import ILP, chain, ilp_graph, unrolled

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
    assert "mxecho: --budget of 10 bytes cannot be met" in check_line(["schedule", GRAPH, "--budget", "10"], capsys, 1)


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


def solved(graph: DataGraph, nodes: list[int]) -> Solved:
    problem = problem_of_graph(*graph)
    schedule = problem.splits(nodes)
    return Solved(schedule, problem.value(schedule), True)


def test_four_lines_with_the_numbers_of_the_schedule() -> None:
    graph = unrolled(2)
    heavy = [number for number, node in enumerate(graph.training.nodes) if node.op == "linear"]
    light = [number for number, node in enumerate(graph.training.nodes) if node.op == "sigmoid"][:3]
    found = solved(graph, [*heavy, *light])
    lines = render_schedule(graph, "search", 3 * 10**6, found).splitlines()
    step = sum(graph.seconds)
    nodes, forward = len(graph.training.nodes), sum(node.forward for node in graph.training.nodes)
    assert lines[0] == f"graph       {nodes} nodes, {forward} of them forward, {1000 * step:.2f} ms a step"
    assert lines[1] == f"peak        0 bytes -> {size_text(found.value.bytes)}, budget 3.0 MB (search)"
    percent, ms = 100 * found.value.seconds / step, 1000 * found.value.seconds
    assert lines[2] == f"overhead    {percent:+.2f} %, {ms:.2f} ms"
    assert found.value.seconds > 0
    assert lines[3].startswith("recomputed  3 nodes, 0 of them heavy, in 3 runs"), "no gradient reads the products"


def test_heavy_operators_are_counted() -> None:
    graph = unrolled(2)
    everything = solve_graph(RecomputeAll(), *graph, max_bytes=0)
    last = render_schedule(graph, "all", 0, everything).splitlines()[-1]
    products = sum(node.op == "linear" for node in graph.training.nodes)
    assert f", {products} of them heavy, in " in last


def test_maps_held_at_the_peak_are_listed() -> None:
    """The first gradient reads everything below the loss: the chain, the loss, and what it makes itself."""
    held = held_at_peak(chain(4).training, solve_graph(RecomputeNone(), *chain(4), max_bytes=0))
    assert held == "tanh0 1 bytes, tanh1 1 bytes, tanh2 1 bytes, tanh3 1 bytes, loss4 1 bytes"
