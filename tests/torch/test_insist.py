"""Graphs in which nodes already run again: their schedules are those of the graph as it is, at other positions."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.ir.schedule import replay, steps_of  # noqa: E402
from echo.torch.decisions import replayed  # noqa: E402
from echo.torch.insist import with_runs  # noqa: E402
from echo.torch.planned_graph import PlannedGraph, planned_graph  # noqa: E402
from tests.support.torch_models import built, traced  # noqa: E402

W = torch.randn(8, 8, requires_grad=True)
X = torch.randn(64, 8)


def deep(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = F.gelu(x @ w)
    return x.square().mean()


def graph_of(name: str, *operators: str) -> PlannedGraph:
    model, inputs = (deep, (W, X)) if name == "deep" else built(name)
    joint = traced(model, *inputs).joint
    seconds = [0.0 if node.is_variable else 1.0 + len(node.op) for node in joint.training.nodes]
    insisted = [number for number, node in joint.training.operators() if node.forward and node.op in operators]
    return planned_graph(joint, seconds, {}, insisted)


@pytest.mark.parametrize(("name", "operators"), [
    ("deep", ("gelu",)), ("deep", ("gelu", "mm")), ("gpt", ("gelu", "_softmax")), ("translation", ("tanh",)),
])  # fmt: skip
def test_runs_of_the_graph_are_those_of_the_schedule(name: str, operators: tuple[str, ...]) -> None:
    graph = graph_of(name, *operators)
    extended = with_runs(graph)
    assert extended.runs <= graph.insisted
    assert {graph.training.nodes[number].op for number in extended.runs} == set(operators)
    order = [number for number, _ in extended.training.operators()]
    value = replayed(graph, extended.schedule({}))
    assert replay(extended.training, order, extended.seconds).bytes == extended.training.planned_bytes
    assert value.seconds == pytest.approx(extended.spent)
    again = {step.node for step in steps_of(graph.training, extended.schedule({})) if step.node != step.position}
    assert again == extended.runs
    # the same values are alive, but copies before one reader may run in another order
    assert value.bytes == pytest.approx(extended.training.planned_bytes, rel=0.05)


def test_random_schedules_are_translated_to_as_many_runs() -> None:
    graph = graph_of("deep", "gelu")
    extended = with_runs(graph)
    forward = [number for number, node in extended.training.operators() if node.forward and node.op == "mm"]
    backward = [number for number, node in extended.training.operators() if not node.forward]
    for seed in range(20):
        numbers = random.Random(seed)
        found = {number: tuple(sorted(numbers.sample(backward, 2))) for number in numbers.sample(forward, 3)}
        schedule = extended.schedule(found)
        assert graph.insisted <= schedule.keys(), seed
        there = sum(extended.seconds[step.node] for step in steps_of(extended.training, found)
                    if step.node != step.position)  # fmt: skip
        # a split between a second run and its reader is there for both in the graph as it is: one run more at most
        more = sum(graph.seconds[number] for number in found)
        assert extended.spent <= replayed(graph, schedule).seconds <= there + extended.spent + more, seed


def test_graph_without_wishes_stays_as_it_is() -> None:
    graph = graph_of("deep")
    extended = with_runs(graph)
    assert extended.training == graph.training
    assert (extended.runs, extended.spent, extended.schedule({})) == (frozenset(), 0, {})
