"""Decisions of a schedule: what is saved is what torch's graphs hand over, costs are those of a replay."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.ir.schedule import once  # noqa: E402
from echo.plans.decisions import RECOMPUTE, STASH  # noqa: E402
from echo.system.process import Deadline  # noqa: E402
from echo.torch.capture import storage_bytes  # noqa: E402
from echo.torch.decisions import ScheduleView  # noqa: E402
from echo.torch.partition import partitioned  # noqa: E402
from echo.torch.plan import GraphPlan  # noqa: E402
from echo.torch.planned_graph import planned_graph  # noqa: E402
from echo.torch.planner import plan_graph  # noqa: E402
from tests.support.torch_models import Traced, W, X, built, deep, traced  # noqa: E402


def planned(graph: Traced, share: float) -> GraphPlan:
    seconds = [0.0 if node.is_variable else 1.0 + 9.0 * (node.op == "mm") for node in graph.joint.training.nodes]
    return plan_graph(graph.joint, seconds, memory_budget=share, deadline=Deadline.after(60))


def handed_over(graph: Traced, schedule: Any) -> int:
    """The bytes of the storages that the forward graph returns for the backward graph, without inputs' own."""
    forward, _ = partitioned(graph.module, graph.joint, schedule, graph.inputs, **graph.options)
    (end,) = (node for node in forward.graph.nodes if node.op == "output")
    found: dict[Any, int] = {}
    given = {key for node in forward.graph.nodes if node.op == "placeholder" for key in storage_bytes(node)}
    for node in end.args[0][graph.options["num_fwd_outputs"] :]:
        if isinstance(node, torch.fx.Node):
            found.update({key: size for key, size in storage_bytes(node).items() if key not in given})
    return sum(found.values())


@pytest.mark.parametrize("name", ["gpt", "translation", "perceptron"])
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_saved_values_are_those_that_torchs_graphs_hand_over(name: str, share: float) -> None:
    model, inputs = built(name)
    graph = traced(model, *inputs)
    plan = planned(graph, share)
    assert bool(plan.recomputed) == (share < 1)
    ours = sum(one.bytes for one in ScheduleView(plan.graph, plan.schedule).residuals())
    assert ours == handed_over(graph, plan.schedule) > 0


def test_recomputed_values_are_decided_and_explained() -> None:
    plan = planned(traced(deep, W, X), 0.7)
    view = ScheduleView(plan.graph, plan.schedule)
    again = {decision.name for decision in view.decisions if decision.action == RECOMPUTE}
    assert again == {name for name, _ in plan.recomputed}
    assert dict(plan.recomputed) == {
        plan.graph.training.nodes[number].name: count for number, count in view.runs.items()
    }
    reasons = {decision.name: decision.reason for decision in view.decisions}
    assert all("recomputed from" in reasons[name] for name in again)
    assert reasons["native_dropout_mask"] == "native_dropout draws random numbers"
    assert "the limits are kept without recomputing it" in reasons.values()


def test_reversed_decisions_cost_what_a_replay_comes_to() -> None:
    plan = planned(traced(deep, W, X), 0.7)
    view = ScheduleView(plan.graph, plan.schedule)
    training = plan.graph.training
    for decision in view.decisions:
        answer = view.alternative(decision)
        if training.nodes[decision.node].stateful:
            assert answer.alone is None
            assert "must not run again" in answer.note
            continue
        schedule = dict(plan.schedule)
        if decision.action == STASH:
            schedule.update(once(training, [decision.node]))
        else:
            del schedule[decision.node]
        value = plan.graph.replayed(schedule)
        assert answer.alone is not None
        assert (answer.alone.planned, answer.alone.seconds) == (value.bytes, value.seconds)
        if decision.action == RECOMPUTE:
            assert answer.alone.seconds < plan.recompute_seconds
    saved_all = view.without(plan.schedule)
    assert (saved_all.bytes, saved_all.seconds) == (plan.stock_bytes, 0)


def test_outputs_of_the_model_are_explained() -> None:
    def twice(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ w).exp()

    joint = traced(twice, W, X).joint
    view = ScheduleView(planned_graph(joint, [1.0] * len(joint.order)), {})
    assert {one.name: one.reason for one in view.decisions}["exp"] == "an output of the model lives to the end anyway"
