"""Names and patterns of ``keep`` and ``recompute`` on joint graphs: what they match, and what is refused."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.errors import OptionError  # noqa: E402
from echo.system.process import Deadline  # noqa: E402
from echo.torch.capture import JointGraph  # noqa: E402
from echo.torch.plan import GraphPlan  # noqa: E402
from echo.torch.planner import plan_graph  # noqa: E402
from echo.torch.wishes import wishes  # noqa: E402
from tests.support.torch_models import W, X, built, deep, traced  # noqa: E402


def planned(joint: JointGraph, **options: object) -> GraphPlan:
    seconds = [0.0 if node.is_variable else 1.0 + 9.0 * (node.op == "mm") for node in joint.training.nodes]
    return plan_graph(joint, seconds, deadline=Deadline.after(60), **options)  # type: ignore[arg-type]


def names(joint: JointGraph, numbers: object) -> set[str]:
    return {joint.training.nodes[number].name for number in numbers}  # type: ignore[attr-defined]


def test_names_and_patterns_match_nodes_and_operators_of_the_forward_pass() -> None:
    joint = traced(deep, W, X).joint
    kept, again = wishes(joint, ["gelu_1", "m?"], ["gelu_[2-4]"])
    assert names(joint, kept) == {"gelu_1", "mm", *(f"mm_{number}" for number in range(1, 6))}
    assert {kept[number] for number in kept} == {"kept: matches 'gelu_1'", "kept: matches 'm?'"}
    assert names(joint, again) == {"gelu_2", "gelu_3", "gelu_4"}


def test_recomputed_names_run_again_whatever_the_budget() -> None:
    joint = traced(deep, W, X).joint
    for limits in ({}, {"memory_budget": 1.0}, {"memory_budget": 0.7}, {"max_overhead": 0.3}):
        plan = planned(joint, recompute=["gelu"], **limits)
        assert {f"gelu{end}" for end in ("", "_1", "_2", "_3", "_4")} <= dict(plan.recomputed).keys(), limits
        assert plan.budget_bytes is None or plan.peak_bytes <= plan.budget_bytes
    assert "gelu" not in dict(planned(joint, memory_budget=1.0).recomputed)
    only = planned(joint, recompute=["gelu_1"])
    assert only.recomputed == (("gelu_1", 1),)
    assert only.why("gelu_1").decision.reason.startswith("the user insists on it")


def test_kept_patterns_are_the_reason_of_their_decisions() -> None:
    plan = planned(traced(deep, W, X).joint, memory_budget=0.8, keep=["gel*"])
    assert plan.recomputed
    assert not any(name.startswith("gelu") for name, _ in plan.recomputed)
    assert plan.why("gelu_2").decision.reason == "kept: matches 'gel*'"


@pytest.mark.parametrize(("keep", "recompute", "message"), [
    (["gelu"], ["gelu_1"], r"recompute: 'gelu_1' \(gelu\), which matches 'gelu_1', is saved: kept: matches 'gelu'"),
    ([], ["native_dropout_mask"], r"recompute: 'native_dropout_mask' .* is saved: .* draws random numbers"),
])  # fmt: skip
def test_impossible_wish_raises_option_error(keep: list[str], recompute: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        wishes(traced(deep, W, X).joint, keep, recompute)


def test_operator_that_must_not_run_again_raises_option_error() -> None:
    model, inputs = built("resnet")
    joint = traced(model, *inputs).joint
    assert wishes(joint, recompute=["*native_batch_norm*"]).again
    with pytest.raises(OptionError, match=r"is saved: .* draws random numbers"):
        wishes(traced(lambda w, x: (x @ w * torch.rand_like(x)).sum(), W, X).joint, recompute=["rand*"])


def test_name_without_a_node_costs_one_warning_or_is_an_error_if_strict(caplog: pytest.LogCaptureFixture) -> None:
    joint = traced(deep, W, X).joint
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert wishes(joint, keep=["gelo"]) == wishes(joint)
    (record,) = (one for one in caplog.records if one.name.startswith("echo") and one.levelno >= logging.WARNING)
    assert "keep: 'gelo' matches no node" in record.message
    assert "did you mean gelu" in record.message
    with pytest.raises(OptionError, match="recompute: 'tangents_1' matches no node"):
        wishes(joint, recompute=["tangents_1"], strict=True)
