"""Tests of `echo.cli.tables`: compare text; record text; schedule text."""

from __future__ import annotations

from echo.cli.tables import compared, held_at_peak, render_comparison, render_recording, render_schedule
from echo.instrument.windows import summary
from echo.policies import All, RecomputeNone
from echo.policies.data_graph import DataGraph, Solved, problem_of_graph, solve_graph
from echo.system.terminal import size_text
from tests.instrument.rows_of import row
from tests.report.profiles import made_up
from tests.support.data_graphs import chain, unrolled

PROFILE = made_up(40)


def test_rows_are_the_usages() -> None:
    found = compared(PROFILE)
    assert [row["graph"] for row in found] == list(PROFILE.usages)
    for each in found:
        usage = PROFILE.usages[each["graph"]]
        assert (each["planned"], each["total"]) == (usage.planned, usage.total)
    assert found[0]["overhead"] == 0.0


def test_the_table() -> None:
    lines = render_comparison(PROFILE).splitlines()
    assert max(map(len, lines)) <= 100
    (own,) = [line for line in lines if "stock MXNet" in line]
    assert "100 %" in own


def cells(text: str, words: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if words in line]
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_two_side_by_side() -> None:
    off = summary([row(0), row(1), row(2, gpu_joules=None)])
    on = summary([row(0), row(1, seconds=0.25, storage=16 * 10**6)])
    text = render_recording({"off": off, "on": {**on, "storage": 16 * 10**6}})
    assert "without echo" in text
    assert cells(text, "ms a step")[1:] == ["50.0", "25.0", "-50 %"]
    assert cells(text, "storage")[1:] == ["64.0", "16.0", "-75 %"]
    assert cells(text, "steps measured")[1:] == ["20", "10", ""]
    assert "energy" not in text, "nobody measured it"


def test_one_alone_and_what_only_one_has() -> None:
    text = render_recording({"run": summary([row(1, gpu_joules=32.0)])})
    assert cells(text, "J a sample")[1:] == ["0.100"]
    text = render_recording({"off": summary([row(1, gpu_joules=32.0)]), "on": summary([row(0)])})
    assert cells(text, "GPU energy")[1:] == ["0.100", "-", ""]


def solved(graph: DataGraph, nodes: list[int]) -> Solved:
    problem = problem_of_graph(*graph)
    splits = problem.splits(nodes)
    return Solved(splits, problem.value(splits), True)


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
    everything = solve_graph(All(), *graph, max_bytes=0)
    last = render_schedule(graph, "all", 0, everything).splitlines()[-1]
    products = sum(node.op == "linear" for node in graph.training.nodes)
    assert f", {products} of them heavy, in " in last


def test_maps_held_at_the_peak_are_listed() -> None:
    """The first gradient reads everything below the loss: the chain, the loss, and what it makes itself."""
    held = held_at_peak(chain(4).training, solve_graph(RecomputeNone(), *chain(4), max_bytes=0))
    assert held == "tanh0 1 bytes, tanh1 1 bytes, tanh2 1 bytes, tanh3 1 bytes, loss4 1 bytes"
