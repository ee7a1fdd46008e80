"""Runs of single operators: timed once a signature, kept on disk, nothing is drawn, scratch memory is seen."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.torch import timing  # noqa: E402
from echo.torch.capture import JointGraph  # noqa: E402
from echo.torch.cost import seconds_of  # noqa: E402
from tests.support.torch_models import traced  # noqa: E402

W = torch.randn(64, 64, requires_grad=True)


@pytest.fixture
def no_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in the first process on a machine."""
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(timing, "TABLES", {})
    monkeypatch.setattr(timing, "_MEASURED", set())


def by_name(joint: JointGraph, values: tuple[float, ...]) -> dict[str, float]:
    return {node.name: value for node, value in zip(joint.training.nodes, values)}


def chain(w: torch.Tensor) -> torch.Tensor:
    return ((w @ w).sin().cos().exp() @ w).sum()


@pytest.mark.usefixtures("no_times")
def test_products_are_timed_once_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    run = timing._run
    monkeypatch.setattr(timing, "_run", lambda call, device: (calls.append("run"), run(call, device))[1])
    joint = traced(chain, W).joint
    first = seconds_of(joint, fused=False)
    count = len(calls)
    assert count >= 4
    assert seconds_of(joint, fused=False) == first
    assert len(calls) == count, "a second graph of the same operators is not timed again"
    assert first[joint.number_of[joint.order[0]]] == 0, "variables take no time"
    assert all(value > 0 for node, value in zip(joint.training.nodes, first) if not node.is_variable)


@pytest.mark.usefixtures("no_times")
def test_times_are_kept_on_disk_until_they_are_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process reads them; what was measured on a busy machine it measures again, once."""
    times = {"busy": [3.0, 1.0, 3.0], "quiet": [1.1, 1.0, 3.0]}
    joint = traced(lambda w: (w @ w).sum(), W).joint
    for state, expected in (("busy", True), ("quiet", True), ("quiet", False)):
        monkeypatch.setattr(timing, "TABLES", {})  # as in a new process
        monkeypatch.setattr(timing, "_MEASURED", set())
        run = Mock(return_value=times[state])
        monkeypatch.setattr(timing, "_run", run)
        assert by_name(joint, seconds_of(joint, fused=False))["mm"] == 1.0
        assert run.called == expected
        run.reset_mock()
        seconds_of(joint, fused=False)
        assert not run.called


def test_timing_draws_no_random_numbers() -> None:
    joint = traced(lambda w: (F.dropout(w @ w, 0.5, True) + torch.rand_like(w)).sum(), W).joint
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    seconds_of(joint, fused=False)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.usefixtures("no_times")
def test_operator_that_cannot_run_counts_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(node: torch.fx.Node, channels_last: bool) -> object:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(timing, "_call_of", failing)
    joint = traced(chain, W).joint
    values = by_name(joint, seconds_of(joint, fused=False))
    assert values["mm"] > 0
    assert values["sin"] > 0
    (table,) = timing.TABLES.values()
    assert table.get("seconds_a_byte") is not None
    assert not [node for node in joint.forward if "mm" in node.name and timing._signature(node) in table]


@pytest.mark.usefixtures("no_times")
def test_scratch_memory_is_measured_once_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = Mock(return_value=(300, 100))
    monkeypatch.setattr(timing, "_SCRATCH", {})
    monkeypatch.setattr(timing.compat, "allocated", allocated)
    node = next(node for node in traced(chain, W).joint.forward if node.name == "mm")
    assert [timing.scratch_of_run(node, torch.device("cpu"), False) for _ in range(2)] == [200, 200]
    assert allocated.call_count == 1
    allocated.side_effect = RuntimeError("out of memory")
    assert timing.scratch_of_run(node, torch.device("cpu"), True) == 0, "in another layout, in which it cannot run"


def test_some_channels_of_a_tensor_stay_so_in_another_layout() -> None:
    """Convolutions copy them: half of a concatenation's gradient takes its bytes once more while they run."""
    whole = torch.zeros(2, 8, 5, 5)
    found = timing._in_channels_last(whole[:, :4])
    assert found.shape == (2, 4, 5, 5)
    assert found.stride() == whole.contiguous(memory_format=torch.channels_last)[:, :4].stride()
    assert timing._in_channels_last(whole).is_contiguous(memory_format=torch.channels_last)
