"""Budgets and bounds on joint graphs: replayed peaks, a least that is reachable, marks of checkpoints."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.errors import BudgetError, OptionError, TimeLimitError  # noqa: E402
from echo.ir.schedule import steps_of  # noqa: E402
from echo.system.process import Deadline  # noqa: E402
from echo.torch import compat  # noqa: E402
from echo.torch.capture import JointGraph  # noqa: E402
from echo.torch.plan import GraphPlan  # noqa: E402
from echo.torch.planned_graph import planned_graph  # noqa: E402
from echo.torch.planner import frontier, is_replayed, plan_graph  # noqa: E402
from echo.torch.report import held_at_peak  # noqa: E402
from tests.support.torch_models import traced  # noqa: E402

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
        assert is_replayed(plan)
        again = [step.node for step in steps_of(joint.training, plan.schedule) if step.node != step.position]
        assert plan.recompute_seconds == pytest.approx(sum(seconds(joint)[number] for number in again))
        assert sum(count for _, count in plan.recomputed) == len(again)
        assert "gelu" in dict.fromkeys(name.partition("_")[0] for name, _ in plan.recomputed)
    assert not is_replayed(replace(plan, schedule={}))


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
    late = Deadline(1.0, time.monotonic(), 1.0)
    plan = plan_graph(joint, seconds(joint), memory_budget=raised.value.reachable, deadline=late)
    assert plan.peak_bytes <= raised.value.reachable, "without time to search, too"


def test_limits_that_make_no_sense_are_refused() -> None:
    joint = traced(deep, W, X).joint
    with pytest.raises(OptionError, match="max_overhead: expected zero or more, got -1"):
        planned(joint, max_overhead=-1)
    with pytest.raises(OptionError, match="memory_budget: expected"):
        planned(joint, memory_budget="lots")


def test_bounds_on_time_hold_together() -> None:
    joint = traced(deep, W, X).joint
    step = sum(seconds(joint))
    plans = [planned(joint, **bounds) for bounds in ({"max_time": 1.2}, {"max_overhead": 0.2}, {"max_time": 1.05},
                                                     {"max_time": 1.05, "max_overhead": 0.2})]  # fmt: skip
    assert plans[0] == plans[1]
    assert plans[2].peak_bytes == plans[3].peak_bytes > plans[0].peak_bytes
    assert 0 < plans[3].recompute_seconds <= 0.05 * step + 1e-9
    with pytest.raises(TimeLimitError, match=r"max_time of 0\.9 cannot be met: the least that can be reached is 1\.00"):
        planned(joint, max_time=0.9)


@pytest.mark.skipif(compat.version() < (2, 5), reason="torch.utils.checkpoint has policies from 2.5 on")
def test_values_that_a_checkpoint_policy_saves_never_run_again() -> None:
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def policy(context: object, operator: object, *args: object, **options: object) -> CheckpointPolicy:
        is_product = operator is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts() -> object:
        return create_selective_checkpoint_contexts(policy)

    def marked(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(deep, w, x, use_reentrant=False, context_fn=contexts)  # type: ignore[no-any-return]

    again = []
    for function in (deep, marked):
        plan = planned(traced(function, W, X).joint, max_overhead=5.0)
        again.append({name.partition("_")[0] for name, _ in plan.recomputed})
    assert again == [{"mm", "gelu"}, {"gelu"}]


def test_frontier_has_plans_from_the_least_to_the_memory_without_echo() -> None:
    joint = traced(deep, W, X).joint
    plan = planned(joint, memory_budget=0.9, keep=["gelu_1"])
    found = frontier(plan, 5)
    assert len(found.plans) > 2
    peaks, times = [one.peak_bytes for one in found.plans], [one.recompute_seconds for one in found.plans]
    assert peaks == sorted(peaks)
    assert times == sorted(times, reverse=True)
    assert (peaks[-1], times[-1]) == (plan.stock_bytes, 0)
    assert all("gelu_1" not in dict(one.recomputed) for one in found.plans), "a wish holds for all of them"
    assert found.within(plan.budget_bytes or 0).recompute_seconds >= plan.recompute_seconds
    assert found.within(peaks[0]) == found.plans[0]
    with pytest.raises(BudgetError, match="cannot be met by this graph"):
        found.within(peaks[0] - 1)
    rows = found.to_json()
    assert [row["total"] for row in rows] == peaks
    assert [row["time"] for row in rows] == [1 + one.overhead for one in found.plans]
    assert "without echo" in str(found)
    with pytest.raises(OptionError, match="budgets: expected a number from 2 to 100, got 1"):
        frontier(plan, 1)


def test_holders_at_the_peak_are_named() -> None:
    joint = traced(deep, W, X).joint
    text = held_at_peak(planned_graph(joint, seconds(joint)), {})
    assert text.count(",") == 4
    assert "2.0 kB" in text or "2 kB" in text or "2.05 kB" in text
