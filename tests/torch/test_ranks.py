"""Ranks of a job take rank 0's plan: two processes on gloo, and what a store may do to one of them."""

from __future__ import annotations

import logging
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.errors import BudgetError, PlanError  # noqa: E402
from echo.system.process import Deadline  # noqa: E402
from echo.torch import compat  # noqa: E402
from echo.torch.capture import JointGraph  # noqa: E402
from echo.torch.plan import GraphPlan  # noqa: E402
from echo.torch.planned_graph import planned_graph  # noqa: E402
from echo.torch.planner import plan_graph  # noqa: E402
from echo.torch.ranks import Ranks  # noqa: E402
from tests.support.torch_models import traced  # noqa: E402
from tests.support.torch_ranks import Result, run_ranks  # noqa: E402


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Result, Result]]:
    names = ["ddp", "poisoned", "alone", "other graph", "failed", "impossible"]
    first, second = run_ranks(tmp_path_factory.mktemp("ranks"), names)
    return {name: (first[name], second[name]) for name in names}


@pytest.fixture(scope="module")
def thorough(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Result, Result]]:
    names = ["ddp", "recompiled", "buckets", "whole"] + (["fsdp"] if compat.version() >= (2, 6) else [])
    first, second = run_ranks(tmp_path_factory.mktemp("ranks"), names)
    return {name: (first[name], second[name]) for name in names}


def check_same_plans(one: Result, other: Result) -> None:
    assert one.is_right
    assert other.is_right
    assert not torch.equal(one.found[0], other.found[0]), "each rank has inputs of its own"
    assert one.schedules == other.schedules
    assert all(one.schedules)
    assert not one.warnings
    assert not other.warnings


def test_ddp_trains_by_rank_0s_plan_with_the_same_bits(quick: dict[str, tuple[Result, Result]]) -> None:
    check_same_plans(*quick["ddp"])


def test_rank_with_other_times_takes_rank_0s_plan(quick: dict[str, tuple[Result, Result]]) -> None:
    check_same_plans(*quick["poisoned"])
    one, other = quick["alone"]
    assert one.schedules != other.schedules, "these times lead to another plan"


@pytest.mark.parametrize("name", ["alone", "other graph"])
def test_rank_without_a_plan_of_rank_0_plans_for_itself(quick: dict[str, tuple[Result, Result]], name: str) -> None:
    one, other = quick[name]
    assert one.is_right
    assert other.is_right
    assert other.schedules[0]
    assert not one.warnings
    (warning,) = other.warnings
    assert "rank 1 plans for itself: rank 0 gave no plan of a graph within 0.2 s" in warning


def test_failure_of_rank_0_leaves_the_graph_to_torch_on_all_ranks(quick: dict[str, tuple[Result, Result]]) -> None:
    for rank, result in enumerate(quick["failed"]):
        assert result.is_right
        assert result.schedules == []
        (warning,) = result.warnings
        assert "no times here" in warning
        assert ("rank 0 could not plan it" in warning) == bool(rank)


def test_budget_below_the_least_is_the_same_error_on_all_ranks(quick: dict[str, tuple[Result, Result]]) -> None:
    one, other = quick["impossible"]
    assert one.error == other.error
    assert one.error.startswith("BudgetError: memory_budget of 1,024 bytes cannot be met")


@pytest.mark.slow
def test_one_rank_compiling_again_takes_the_plan_of_before(thorough: dict[str, tuple[Result, Result]]) -> None:
    _, other = thorough["recompiled"]
    assert other.is_right
    assert not other.warnings
    assert other.schedules == thorough["ddp"][1].schedules


@pytest.mark.slow
def test_graphs_of_small_buckets_have_the_same_plans(thorough: dict[str, tuple[Result, Result]]) -> None:
    """Dynamo splits at the buckets of DDP, unless it is told not to."""
    one, other = thorough["buckets"]
    assert len(one.schedules) > 1
    assert one.is_right
    assert other.is_right
    assert one.schedules == other.schedules
    assert any(one.schedules)
    check_same_plans(*thorough["whole"])
    assert len(thorough["whole"][0].schedules) == 1


@pytest.mark.slow
@pytest.mark.skipif(compat.version() < (2, 6), reason="torch.distributed.fsdp has fully_shard from 2.6 on")
def test_fsdp2_trains_with_the_same_bits(thorough: dict[str, tuple[Result, Result]]) -> None:
    """Dynamo breaks at FSDP's hooks: a block is a graph, and both blocks share one."""
    one, other = thorough["fsdp"]
    check_same_plans(one, other)
    assert one.peaks[0] < one.stock[0]


# One process, with a store as rank 0 and rank 1 see it.


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    store = torch.distributed.HashStore()
    monkeypatch.setattr(compat, "store_of_ranks", lambda: store)
    return store


@pytest.fixture(scope="module")
def joint() -> JointGraph:
    def deep(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.tanh(x @ w)
        return x.square().mean()

    return traced(deep, torch.randn(8, 8, requires_grad=True), torch.randn(64, 8)).joint


def planned(joint: JointGraph, budget: float = 0.7) -> GraphPlan:
    seconds = [0.0 if node.is_variable else 1.0 for node in joint.training.nodes]
    return plan_graph(joint, seconds, memory_budget=budget, deadline=Deadline.after(60))


def shared(ranks: Ranks, joint: JointGraph, plan: Callable[[], GraphPlan]) -> GraphPlan:
    return ranks.shared(joint, plan, lambda seconds: planned_graph(joint, seconds))


def on_rank(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "rank", lambda: number)


def unplanned() -> GraphPlan:
    raise AssertionError("this rank plans for itself")


def test_plan_of_rank_0_is_the_first_that_it_made(
    joint: JointGraph, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_rank(0, monkeypatch)
    first = shared(Ranks("limits", 0.0), joint, lambda: planned(joint))
    assert first.recomputed
    assert shared(Ranks("limits", 0.0), joint, unplanned) == first
    on_rank(1, monkeypatch)
    assert shared(Ranks("limits", 0.0), joint, unplanned) == first
    with pytest.raises(AssertionError, match="plans for itself"):
        shared(Ranks("other limits", 0.0), joint, unplanned)


def test_process_without_a_group_plans_for_itself(joint: JointGraph) -> None:
    assert compat.store_of_ranks() is None
    assert shared(Ranks("limits", 60.0), joint, lambda: planned(joint)).recomputed


def test_wait_shrinks_with_each_graph_that_rank_0_does_not_plan(
    joint: JointGraph, store: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    on_rank(3, monkeypatch)
    ranks = Ranks("limits", 0.2)
    for _ in range(3):
        assert shared(ranks, joint, lambda: planned(joint)).recomputed
    assert ranks.wait == pytest.approx(0.2 / 64)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "rank 3 plans for itself" in record.message


def test_broken_store_leaves_each_rank_to_itself(joint: JointGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(compat, "store_of_ranks", Broken)
    for number in (0, 1):
        on_rank(number, monkeypatch)
        assert shared(Ranks("limits", 60.0), joint, lambda: planned(joint)).recomputed


def test_error_of_rank_0_reaches_the_others(joint: JointGraph, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> GraphPlan:
        raise ZeroDivisionError("by zero")

    for plan, error in ((failing, PlanError), (lambda: planned(joint, 0.01), BudgetError)):
        ranks = Ranks(error.__name__, 0.0)
        on_rank(0, monkeypatch)
        with pytest.raises((ZeroDivisionError, BudgetError)) as raised:
            shared(ranks, joint, plan)
        on_rank(1, monkeypatch)
        with pytest.raises(error) as received:
            shared(ranks, joint, unplanned)
        assert str(raised.value) in str(received.value)
