"""Graphs that plans keep: equal by fingerprint under other names, and the same graph after JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.errors import GraphError  # noqa: E402
from echo.torch.planned_graph import PlannedGraph, fingerprint, module_of, planned_graph, source_of  # noqa: E402
from tests.support.torch_models import built, traced  # noqa: E402

W = torch.randn(8, 8, requires_grad=True)
X = torch.randn(64, 8)


def graph_of(function: Any, *inputs: torch.Tensor) -> PlannedGraph:
    joint = traced(function, *inputs).joint
    return planned_graph(joint, [0.0 if node.is_variable else 1.0 for node in joint.training.nodes])


def layers(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = F.gelu(x @ w)
    return x.square().mean()


def renamed(weight: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    value = data
    for _ in range(3):
        value = F.gelu(value @ weight)
    return value.square().mean()


def with_a_constant(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return layers(w, x) * 0.5


def with_another_constant(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return layers(w, x) * 0.25


def crossed(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.gelu(F.gelu(x @ w)) @ w @ w).square().mean()


def test_fingerprint_of_the_same_structure_is_equal_under_other_names() -> None:
    expected = graph_of(layers, W, X).fingerprint
    assert graph_of(renamed, W, X).fingerprint == graph_of(layers, W, X).fingerprint == expected
    doubled = W.detach().double().requires_grad_()
    others = [graph_of(layers, W, torch.randn(32, 8)), graph_of(layers, doubled, X.double())]
    others += [graph_of(function, W, X) for function in (with_a_constant, with_another_constant, crossed)]
    assert len({expected, *(graph.fingerprint for graph in others)}) == 6
    assert len(expected) == 32


def test_fingerprint_of_renamed_nodes_is_equal() -> None:
    joint = traced(layers, W, X).joint
    before = fingerprint(joint)
    for number, node in enumerate(joint.order):
        node.name = f"another_{number}"
    assert fingerprint(joint) == before


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_graph_after_json_is_the_same(name: str) -> None:
    model, inputs = built(name)
    graph = graph_of(model, *inputs)
    again = PlannedGraph.from_json(json.loads(json.dumps(graph.to_json())))
    assert again == graph
    assert any("draws random numbers" in reason for reason in graph.reasons.values()) == (name == "gpt")
    assert again.training.planned_bytes == graph.training.planned_bytes > 0


def test_origins_name_the_line_and_the_module() -> None:
    model, inputs = built("gpt")
    graph = graph_of(model, *inputs)
    origins = {node.name: graph.origin(number) for number, node in enumerate(graph.training.nodes)}
    assert re.match(r"torch_models\.py:\d+: return x \+ F\.dropout\(self\.down\(F\.gelu\(", origins["addmm_2"])
    assert origins["addmm_2"].endswith("(blocks.0.up)")
    assert origins["embedding"].endswith("(embed)")
    layers_of_torch = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    assert set(graph_of(lambda x: layers_of_torch(x).sum(), X).modules.values()) == {"0", "1"}
    assert set(graph_of(torch.nn.Sequential(layers_of_torch, torch.nn.Linear(8, 1)), X).modules.values()) == {
        "0.0",
        "0.1",
        "1",
    }
    (node, *_) = traced(layers, W, X).joint.forward
    assert source_of(node).startswith("test_planned_graph.py:")
    node.meta = {}
    assert source_of(node) == module_of(node) == ""


@pytest.mark.parametrize(("change", "message"), [
    (lambda value: value["nodes"][-1][4].append(-1), "expected a whole number"),
    (lambda value: value["nodes"][-1].__setitem__(6, "slow"), "expected seconds"),
    (lambda value: value["nodes"][-1][5].append([10**6, 0]), "no output"),
    (lambda value: value["nodes"][-1].__setitem__(1, 5), "expected a text"),
])  # fmt: skip
def test_damaged_graph_raises_graph_error(change: Any, message: str) -> None:
    value = graph_of(layers, W, X).to_json()
    change(value)
    with pytest.raises(GraphError, match=message):
        PlannedGraph.from_json(value)
