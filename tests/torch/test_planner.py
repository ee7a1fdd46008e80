"""Budgets on joint graphs: replayed peaks, torch's own saved sets as starts, a least that is reachable."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.errors import BudgetError, OptionError  # noqa: E402
from echo.ir.schedule import replay, steps_of  # noqa: E402
from echo.system.process import Deadline  # noqa: E402
from echo.torch import compat  # noqa: E402
from echo.torch.capture import JointGraph  # noqa: E402
from echo.torch.planner import GraphPlan, held_at_peak, is_replayed, plan_graph, schedule_of  # noqa: E402
from tests.support.torch_models import Traced, built, traced  # noqa: E402

W = torch.randn(8, 8, requires_grad=True)
X = torch.randn(64, 8)


def deep(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for _ in range(8):
        x = F.gelu(x @ w)
    return x.square().mean()


def seconds(joint: JointGraph) -> tuple[float, ...]:
    """A product takes ten times as long as anything else."""
    return tuple(0.0 if node.is_variable else 10.0 if node.op == "mm" else 1.0 for node in joint.training.nodes)


def planned(joint: JointGraph, **options: object) -> GraphPlan:
    return plan_graph(joint, seconds(joint), deadline=Deadline.after(60), **options)  # type: ignore[arg-type]


def test_plan_keeps_its_budget_by_a_replay() -> None:
    joint = traced(deep, W, X).joint
    for share in (0.8, 0.6, 0.5):
        plan = planned(joint, memory_budget=share)
        assert plan.peak_bytes <= plan.budget_bytes == int(share * plan.stock_bytes)
        assert is_replayed(joint, plan, seconds(joint))
        again = [step.node for step in steps_of(joint.training, plan.schedule) if step.node != step.position]
        assert plan.recompute_seconds == pytest.approx(sum(seconds(joint)[number] for number in again))
        assert sum(count for _, count in plan.recomputed) == len(again)
        assert "gelu" in dict.fromkeys(name.partition("_")[0] for name, _ in plan.recomputed)
    wrong = GraphPlan({}, plan.stock_bytes, plan.peak_bytes, None, 1.0, 0.0, ())
    assert not is_replayed(joint, wrong, seconds(joint))


def test_less_memory_takes_more_time() -> None:
    joint = traced(deep, W, X).joint
    times = [planned(joint, memory_budget=share).recompute_seconds for share in (0.4, 0.5, 0.6, 0.8, 1.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1] == 0


def test_least_of_an_error_is_reachable() -> None:
    joint = traced(deep, W, X).joint
    with pytest.raises(BudgetError, match="cannot be met by this graph: the least that can be reached") as raised:
        planned(joint, memory_budget=64)
    assert planned(joint, memory_budget=raised.value.reachable).peak_bytes <= raised.value.reachable


def test_limits_that_make_no_sense_are_refused() -> None:
    joint = traced(deep, W, X).joint
    with pytest.raises(OptionError, match="max_overhead: expected zero or more, got -1"):
        planned(joint, max_overhead=-1)
    with pytest.raises(OptionError, match="memory_budget: expected"):
        planned(joint, memory_budget="lots")


def saved_peak(graph: Traced, ratio: float) -> tuple[int, int]:
    """The peak of torch's partition by its own graphs, and of its saved set as a schedule here."""
    joint = graph.joint
    names = compat.saved_names(graph.module, graph.inputs, ratio, **graph.options)
    order = [step.node for step in steps_of(joint.training, schedule_of(joint, names))]
    return replay(joint.training, order, seconds(joint)).bytes, joint.training.planned_bytes


def test_saved_set_of_torch_is_a_schedule_of_ours() -> None:
    model, inputs = built("gpt")
    graph = traced(model, *inputs)
    peaks = [saved_peak(graph, ratio)[0] for ratio in (1.0, 0.5, 0.1)]
    assert peaks[0] > peaks[-1]
    assert schedule_of(graph.joint, [node.name for node in graph.joint.forward]) == {}, "all is saved"


def test_plan_is_never_worse_than_torchs_saved_set() -> None:
    model, inputs = built("gpt")
    graph = traced(model, *inputs)
    joint = graph.joint
    for ratio in (0.5, 0.25):
        names = compat.saved_names(graph.module, graph.inputs, ratio, **graph.options)
        steps = steps_of(joint.training, schedule_of(joint, names))
        value = replay(joint.training, [step.node for step in steps], seconds(joint))
        plan = planned(joint, memory_budget=value.bytes, saved=[names])
        assert plan.peak_bytes <= value.bytes
        assert plan.recompute_seconds <= value.seconds - sum(seconds(joint)) + 1e-9


def test_random_nodes_of_torchs_set_stay_saved() -> None:
    graph = traced(lambda w: F.dropout((w @ w) + torch.rand_like(w), 0.5, True).square().sum(), W)
    joint = graph.joint
    again = {joint.training.nodes[number].op for number in schedule_of(joint, [])}
    assert "rand_like" not in again
    assert "native_dropout_mask" not in again


def test_holders_at_the_peak_are_named() -> None:
    joint = traced(deep, W, X).joint
    text = held_at_peak(joint, {})
    assert text.count(",") == 4
    assert "2.0 kB" in text or "2 kB" in text or "2.05 kB" in text
