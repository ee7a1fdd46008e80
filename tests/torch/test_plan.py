"""Plans as values: JSON and back, and what is wrong in a file is said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.errors import GraphError, OptionError  # noqa: E402
from echo.system.process import Deadline  # noqa: E402
from echo.torch.plan import GraphPlan  # noqa: E402
from echo.torch.planner import plan_graph  # noqa: E402
from tests.support.torch_models import traced  # noqa: E402

W = torch.randn(8, 8, requires_grad=True)
X = torch.randn(64, 8)


def deep(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = F.gelu(F.dropout(x @ w, 0.5))
    return x.square().mean()


@pytest.fixture(scope="module")
def plan() -> GraphPlan:
    joint = traced(deep, W, X).joint
    seconds = [0.0 if node.is_variable else 1.0 + 9.0 * (node.op == "mm") for node in joint.training.nodes]
    return plan_graph(joint, seconds, memory_budget=0.7, deadline=Deadline.after(60))


def test_plan_after_json_is_the_same(plan: GraphPlan) -> None:
    assert plan.recomputed
    again = GraphPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert str(again) == str(plan)
    assert again.fingerprint == plan.fingerprint


def test_saved_plan_is_loaded_and_an_edited_file_is_refused(plan: GraphPlan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    plan.save(str(path))
    assert GraphPlan.load(path) == plan
    assert [one.name for one in tmp_path.iterdir()] == ["plan.json"]
    value = json.loads(path.read_text(encoding="utf-8"))
    value["graph"]["nodes"][-1][6] += 1.0
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(GraphError, match=r"plan\.json is not a plan: it was edited or damaged"):
        GraphPlan.load(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(GraphError, match="is not a plan"):
        GraphPlan.load(path)


def test_why_names_decisions_and_what_others_cost(plan: GraphPlan) -> None:
    name, _ = plan.recomputed[0]
    node = next(number for number, one in enumerate(plan.graph.training.nodes) if one.name == name)
    answer = plan.why(name)
    assert answer.decision.action == "recompute"
    assert answer.plan.planned == plan.peak_bytes
    assert re.search(rf"{name}:0 .* is recomputed\n  why: .*\n  the plan: .*\n  stashed instead: ", str(answer))
    assert answer.alternative.alone is not None
    assert answer.alternative.alone.seconds < plan.recompute_seconds
    assert plan.graph.sources[node] in answer.alternative.note
    random_one = str(plan.why("native_dropout_mask"))
    assert "why: native_dropout draws random numbers" in random_one
    assert "note: it must not run again" in random_one
    with pytest.raises(OptionError, match=r"no gradient reads a feature map named 'gelo': .*did you mean gelu"):
        plan.why("gelo")


def test_residuals_are_lines_from_the_largest_on(plan: GraphPlan) -> None:
    lines = plan.residuals()
    sizes = [int(line.partition(" bytes")[0].replace(",", "")) for line in lines]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) > 3
    assert re.match(r"2,048 bytes, output 0 of \w+ \w+ from test_plan\.py:\d+: x = F\.gelu\(F\.dropout\(", lines[0])


@pytest.mark.parametrize(("change", "message"), [
    (lambda value: value.update(format="echo-torch-plan-0"), "of another version of echo"),
    (lambda value: value.pop("schedule"), "it lacks 'schedule'"),
    (lambda value: value.update(budget_bytes="6GB"), "budget_bytes: expected bytes or null"),
    (lambda value: value.update(peak_bytes=1), "a replay of it comes to"),
    (lambda value: value.update(schedule=[[10**6, [1]]]), "there is no node"),
    (lambda value: value.update(schedule=[[0, [1]]]), "must not run again"),
    (lambda value: value["schedule"][0][1].append(0), "expected ascending positions of backward nodes"),
    (lambda value: value["schedule"][0].__setitem__(1, []), "expected ascending positions of backward nodes"),
    (lambda value: value["schedule"][0].__setitem__(1, [True]), "expected whole numbers"),
    (lambda value: value.update(graph=None), "not a plan"),
])  # fmt: skip
def test_damaged_plan_raises_graph_error(plan: GraphPlan, change: Any, message: str) -> None:
    value = json.loads(json.dumps(plan.to_json()))
    change(value)
    with pytest.raises(GraphError, match=message):
        GraphPlan.from_json(value)


def test_random_operators_of_a_file_never_run_again(plan: GraphPlan) -> None:
    mask = next(number for number, node in enumerate(plan.graph.training.nodes) if node.op == "native_dropout_mask")
    backward = next(number for number, node in plan.graph.training.operators() if not node.forward)
    value = {**plan.to_json(), "schedule": [[mask, [backward]]]}
    with pytest.raises(GraphError, match="'native_dropout_mask' must not run again"):
        GraphPlan.from_json(value)
