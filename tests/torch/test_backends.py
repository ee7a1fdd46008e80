"""Models under ``torch.compile`` with a budget: eager mode's bits at every budget, the predicted peak to the byte."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.errors import BudgetError, OptionError, PlanError, UnsupportedError, VerificationError  # noqa: E402
from echo.torch import GraphPlan, Partitioner, PeakTracker, backend, backends, compat, compilers, tracking  # noqa: E402
from tests.support.torch_models import MODELS, activation_budget, built, equal, step  # noqa: E402

PLANNING = 1.5  # seconds for a plan of these small graphs


def compiled_step(name: str, budget: Any, **options: Any) -> tuple[list[torch.Tensor], GraphPlan, int]:
    """What a step comes to, its plan, and the tracked peak."""
    model, inputs = built(name)
    tracker = PeakTracker()
    torch._dynamo.reset()
    ours = backend(budget, compiler=tracking(tracker), strict=True, max_planning=PLANNING, **options)
    result = step(torch.compile(model, backend=ours, fullgraph=True), inputs, model)
    (plan,) = ours.plans
    return result, plan, tracker.peak


def least_of(name: str) -> int:
    """The least that an error for a budget of almost nothing names."""
    with pytest.raises(Exception, match="the least that can be reached") as raised:
        compiled_step(name, 1024)
    error = raised.value.inner_exception
    assert isinstance(error, BudgetError)
    assert error.budget == 1024 < error.reachable
    return error.reachable


@pytest.mark.parametrize("name", MODELS)
def test_every_budget_keeps_the_bits_of_eager_mode(name: str) -> None:
    """From the whole memory down to the least, which is reachable; the tracked peak is the predicted one."""
    model, inputs = built(name)
    expected = step(model, inputs)
    assert not equal(expected, step(model, inputs)[:-1]), "a missing result is noticed"
    least, (_, free, _) = least_of(name), compiled_step(name, 1.0)
    stock = free.peak_bytes
    assert least < 0.8 * stock
    seconds = -1.0
    for share in (1.0, 0.5, 0.0):
        result, plan, peak = compiled_step(name, int(least + share * (stock - least)))
        assert equal(result, expected), f"share {share}"
        assert plan.peak_bytes <= plan.budget_bytes
        # new statistics count to the end of the step, and torch frees them after the forward pass
        assert peak == pytest.approx(plan.peak_bytes, rel=0.005 if name == "resnet" else 0), f"share {share}"
        assert plan.recompute_seconds > seconds
        seconds = plan.recompute_seconds
    assert plan.recomputed


class Dropped(torch.nn.Module):
    """The program of pytorch #190758: dropout between products, under a low budget."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), 0.5, True)
        return x.square().mean()


def dropped_step(compiler: Any = None) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model, inputs = Dropped(), (torch.randn(96, 32),)
    torch._dynamo.reset()
    return step(model if compiler is None else torch.compile(model, backend=compiler, fullgraph=True), inputs, model)


def test_dropout_keeps_its_mask_at_every_budget() -> None:
    expected = dropped_step()
    for budget in (1.0, 0.8, 0.6):
        ours = backend(budget, compiler="aot_eager", strict=True, max_planning=PLANNING)
        assert equal(dropped_step(ours), expected), f"budget {budget}"
    assert ours.plans[0].recomputed


@pytest.mark.skipif(compat.version() >= (2, 14), reason="pytorch #190758 may be mended there")
def test_torch_draws_other_masks_at_low_budgets() -> None:
    """What the test before would see if echo let random operators run again."""
    expected = dropped_step()
    with activation_budget(0.0):
        wrong = dropped_step(compilers.eager_with(compat.min_cut_partition))
    assert equal(wrong[:1], expected[:1])
    assert not equal(wrong, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["translation", "resnet"])
def test_inductor_keeps_copies_and_results(name: str) -> None:
    """Each budget is planned, though the graph is the same; results are as near to eager mode's as torch's own are."""
    expected = step(*built(name))
    model, inputs = built(name)
    own = step(torch.compile(model, backend="inductor", fullgraph=True), inputs, model)
    near = max(float((one - other).abs().max()) for one, other in zip(own[:-1], expected))
    for budget in (1.0, 0.75):
        torch._dynamo.reset()
        ours = backend(budget, strict=True, verify=True, max_planning=PLANNING)
        model, inputs = built(name)
        found = step(torch.compile(model, backend=ours, fullgraph=True), inputs, model)
        assert max(float((one - other).abs().max()) for one, other in zip(found[:-1], expected)) <= 2 * near + 1e-6
        (plan,) = ours.plans
        assert plan.peak_bytes <= budget * plan.stock_bytes


class Noisy(torch.autograd.Function):
    """Draws in the forward pass what only its gradient reads."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.rand_like(x), x * scale)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        noise, scaled = ctx.saved_tensors
        return gradient * noise * scaled, None


class WithNoise(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linears = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4))
        self.register_buffer("scale", torch.ones(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear in self.linears:
            x = Noisy.apply(F.gelu(linear(x)), self.scale)
            self.scale.mul_(1.5)
        return x.square().mean()


def test_values_for_gradients_alone_are_made_in_the_forward_pass() -> None:
    """Numbers that are drawn there, and products with a buffer that is written later."""
    torch.manual_seed(4)
    inputs = (torch.randn(64, 32),)

    def run(compiler: Any) -> list[torch.Tensor]:
        torch.manual_seed(4)
        model = WithNoise()
        return step(
            model if compiler is None else torch.compile(model, backend=compiler, fullgraph=True), inputs, model
        )

    expected = run(None)
    for budget in (1.0, 0.8):
        ours = backend(budget, compiler="aot_eager", strict=True, max_planning=PLANNING)
        assert equal(run(ours), expected), f"budget {budget}"
    assert ours.plans[0].recomputed


def test_one_plan_serves_all_sizes_of_a_dynamic_graph() -> None:
    """Planned for the first size; the others run the same graphs, with eager mode's bits."""
    model, _ = built("perceptron")
    ours = backend(0.8, compiler="aot_eager", strict=True, max_planning=PLANNING)
    compiled = torch.compile(model, backend=ours, fullgraph=True, dynamic=True)
    for rows in (96, 33, 128):
        torch.manual_seed(rows)
        inputs = (torch.randn(rows, 32),)
        assert equal(step(compiled, inputs, model), step(model, inputs)), f"{rows} rows"
    (plan,) = ours.plans
    assert plan.recomputed


def test_autocast_accumulated_gradients_and_inference_keep_the_bits_of_torchs_graph() -> None:
    """Traced autocast rounds in another way than eager mode does: what counts is the graph without recomputation."""

    def run(compiler: Any) -> list[torch.Tensor]:
        model, inputs = built("gpt")
        torch._dynamo.reset()
        call = torch.compile(model, backend=compiler, fullgraph=True)
        torch.manual_seed(11)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                call(*inputs).backward()
        with torch.no_grad():
            last = call(*inputs)
        return [last, *(parameter.grad for parameter in model.parameters())]

    expected = run(compilers.eager_with(compat.default_partition))
    ours = backend(0.7, compiler="aot_eager", strict=True, verify=True, max_planning=PLANNING)
    assert equal(run(ours), expected)
    assert len(ours.plans) == 1, "there is nothing to plan without gradients"
    assert ours.plans[0].recomputed


def test_overhead_is_bounded() -> None:
    _, plan, peak = compiled_step("gpt", None, max_overhead=0.05)
    assert 0 < plan.overhead <= 0.05
    assert peak == plan.peak_bytes < plan.stock_bytes
    _, nothing, _ = compiled_step("gpt", None, max_overhead=0.0)
    assert nothing.recompute_seconds == 0


def test_kept_operators_never_run_again() -> None:
    _, free, _ = compiled_step("gpt", 0.5)
    assert any(name.startswith("gelu") for name, _ in free.recomputed)
    _, bound, _ = compiled_step("gpt", 0.6, keep=["gelu"])
    assert bound.recomputed
    assert not any(name.startswith("gelu") for name, _ in bound.recomputed)


def test_saved_plan_divides_the_same_graph_in_another_compilation(tmp_path: Path) -> None:
    expected = dropped_step()
    first = backend(0.6, compiler="aot_eager", strict=True, max_planning=PLANNING)
    dropped_step(first)
    first.plans[0].save(tmp_path / "plan.json")
    plan = GraphPlan.load(tmp_path / "plan.json")
    again = backend(plan=plan, compiler="aot_eager", strict=True)
    assert equal(dropped_step(again), expected)
    assert [(one.schedule, one.peak_bytes) for one in again.plans] == [(plan.schedule, plan.peak_bytes)]
    assert again.plans[0].recomputed


def test_plan_of_another_graph_is_an_error_or_costs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    _, other, _ = compiled_step("perceptron", 0.8)
    expected = dropped_step()
    with pytest.raises(Exception, match="none of 1 plan is for a graph with fingerprint") as raised:
        dropped_step(backend(0.6, plan=other, compiler="aot_eager", strict=True))
    assert isinstance(raised.value.inner_exception, PlanError)
    with caplog.at_level(logging.WARNING):
        for budget in (0.6, None):
            ours = backend(budget, plan=[other], compiler="aot_eager", max_planning=PLANNING)
            assert equal(dropped_step(ours), expected)
            assert len(ours.plans) == (budget is not None)
    warnings = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert [one.message.partition(" of ")[0] for one in warnings] == ["echo: plan: none"]


def test_recompute_alone_runs_these_nodes_again() -> None:
    expected = dropped_step()
    ours = backend(recompute=["relu*"], compiler="aot_eager", strict=True)
    assert equal(dropped_step(ours), expected)
    (plan,) = ours.plans
    assert plan.recomputed
    assert {name.partition("_")[0] for name, _ in plan.recomputed} == {"relu"}


def test_graph_without_limits_is_torchs_own() -> None:
    ours = backend(compiler="aot_eager")
    assert equal(dropped_step(ours), dropped_step())
    assert ours.plans == []


def test_failed_planning_costs_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise UnsupportedError("sparse")

    monkeypatch.setattr(backends, "joint_graph", failing)
    expected = dropped_step()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert equal(dropped_step(backend(0.6, compiler="aot_eager")), expected)
    (record,) = caplog.records
    assert "torch's own partitioner divides a graph" in record.message
    assert "sparse" in record.message
    with pytest.raises(Exception, match="sparse"):
        dropped_step(backend(0.6, compiler="aot_eager", strict=True))


def test_error_of_a_signal_handler_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: Any) -> None:
        raise TimeoutError("late")

    monkeypatch.setattr(backends, "joint_graph", lambda *_, **__: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, late)
    try:
        with pytest.raises(Exception, match="late") as raised:  # Dynamo wraps what a backend raises
            dropped_step(backend(0.6, compiler="aot_eager"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert isinstance(getattr(raised.value, "inner_exception", raised.value), TimeoutError)


class Selecting(torch.nn.Module):
    """The rows that are positive: how many is not known before."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.layer(x))
        return torch.tanh(self.layer(x[(x[:, 0] > 0).nonzero().squeeze(1)]))


def test_sizes_that_depend_on_values_are_left_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(3)
    model, x = Selecting(), torch.randn(32, 16)
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), caplog.at_level(logging.WARNING):
        torch.compile(model, backend=backend(0.6, compiler="aot_eager"))(x).sum().backward()
    assert equal([parameter.grad for parameter in model.parameters()], expected)
    (record,) = caplog.records
    assert "depends on values of arrays, expected one that torch knows before" in record.message
    assert "report" not in record.message


@pytest.mark.parametrize("kept", [False, True])
def test_large_input_that_changes_before_backward_is_an_error_unless_its_readers_are_kept(kept: bool) -> None:
    """Eager mode saves no addend; backward reads it where the sum runs again."""
    torch.manual_seed(3)
    layer, mean = torch.nn.Linear(64, 64), torch.zeros(1 << 9, 64)
    wishes: dict[str, Any] = {"keep" if kept else "recompute": ["sub*", "tanh*"]}
    ours = backend(compiler="aot_eager", **({"max_overhead": 0.5} if kept else {}), **wishes)
    loss = torch.compile(lambda x: layer((x - mean).tanh()).tanh().sum(), backend=ours)(torch.randn(1 << 9, 64))
    mean.add_(1)
    if kept:
        loss.backward()
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_verified_plan_is_used_and_a_wrong_one_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = dropped_step()
    ours = backend(0.6, compiler="aot_eager", verify=True, strict=True)
    assert equal(dropped_step(ours), expected)
    assert len(ours.plans) == 1
    monkeypatch.setattr(backends, "differences", lambda *_, **__: ["gradient 3"])
    with pytest.raises(Exception, match="gradient 3") as raised:
        dropped_step(backend(0.6, compiler="aot_eager", verify=True, strict=True))
    assert isinstance(raised.value.inner_exception, VerificationError)
    ours = backend(0.6, compiler="aot_eager", verify=True)
    assert equal(dropped_step(ours), expected)
    assert ours.plans == []
    assert "results differ from torch's default partition: gradient 3" in caplog.text


def test_partitioner_alone_is_a_partition_fn() -> None:
    from functorch.compile import aot_function, nop

    partitioner = Partitioner(0.7, strict=True)
    weight = torch.randn(16, 16, requires_grad=True)

    def function(w: torch.Tensor) -> torch.Tensor:
        x = w
        for _ in range(6):
            x = torch.tanh(x @ w)
        return x.sum()

    function(weight).backward()
    expected, weight.grad = weight.grad, None
    aot_function(function, nop, nop, partition_fn=partitioner)(weight).backward()
    assert torch.equal(weight.grad, expected)
    (plan,) = partitioner.plans
    assert plan.recomputed
    assert "nodes run again" in str(plan)


@pytest.mark.parametrize(("options", "message"), [
    ({"memory_budget": "many"}, "memory_budget: expected whole bytes"),
    ({"memory_budget": -1}, "memory_budget: expected whole bytes"),
    ({"max_overhead": -0.1}, "max_overhead: expected zero or more, got -0.1"),
    ({"max_planning": 0}, "max_planning: expected seconds above zero, got 0"),
    ({"keep": "mm"}, "keep: expected a list of names, got 'mm'"),
    ({"recompute": "mm"}, "recompute: expected a list of names, got 'mm'"),
    ({"plan": "plan.json"}, "plan: expected a GraphPlan or several, as of GraphPlan.load, got 'plan.json'"),
    ({"compiler": "tvm"}, 'compiler: expected "inductor", "aot_eager" or a function, got \'tvm\''),
    ({"budget": 1}, "unknown option 'budget': expected one of allow, fused, keep"),
])  # fmt: skip
def test_invalid_option_raises_option_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        backend(**options)
