"""A schedule as text: what it says are the numbers of the replay."""

from __future__ import annotations

from echo.cli.schedule_text import held_at_peak, render_schedule
from echo.ir.data_graph import DataGraph
from echo.policies.all import All
from echo.policies.data_problem import Solved, problem_of_graph, solve_graph
from echo.policies.none import None_
from echo.system.terminal import size_text
from tests.data_graphs import chain, unrolled


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


def test_what_is_held_at_the_peak() -> None:
    """The first gradient reads everything below the loss: the chain, the loss, and what it makes itself."""
    held = held_at_peak(chain(4).training, solve_graph(None_(), *chain(4), max_bytes=0))
    assert held == "tanh0 1 bytes, tanh1 1 bytes, tanh2 1 bytes, tanh3 1 bytes, loss4 1 bytes"
