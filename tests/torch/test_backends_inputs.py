"""Models that a backend cannot plan, or plans in part: results are those of eager mode, errors are torch's own."""

from __future__ import annotations

import logging
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from echo.torch import Backend, backend, compat  # noqa: E402
from tests.support.torch_models import equal, step  # noqa: E402

PLANNING = 0.5


def ours(budget: Any = 0.7, **options: Any) -> Backend:
    return backend(budget, compiler="aot_eager", max_planning=PLANNING, **options)


def steps(make: Callable[[], nn.Module], used: Backend, *inputs: torch.Tensor) -> tuple[list[Any], list[Any]]:
    """A step with echo, and one without it."""
    torch.manual_seed(2)
    model = make()
    found = step(torch.compile(model, backend=used), inputs, model)
    torch.manual_seed(2)
    model = make()
    return found, step(model, inputs, model)


class Deep(nn.Module):
    """Linear layers with something after each."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.between, self.layers = between, nn.ModuleList(nn.Linear(32, 32, dtype=dtype) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.between(layer(x))
        return (x * x.conj()).real.mean() if x.is_complex() else x.square().mean()


def broken(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return torch.tanh(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_model_of_graph_breaks_keeps_the_bits(caplog: pytest.LogCaptureFixture) -> None:
    """Each graph has a product and little to save: its budget is a bound on the time."""
    used = ours(None, max_overhead=0.5, strict=True)
    found, expected = steps(lambda: Deep(broken), used, torch.randn(64, 32))
    assert equal(found, expected)
    assert used.plans
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_model_without_graphs_is_left_alone() -> None:
    class Disabled(Deep):
        @torch._dynamo.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    used = ours(strict=True)
    found, expected = steps(lambda: Disabled(torch.tanh), used, torch.randn(64, 32))
    assert equal(found, expected)
    assert used.plans == []


def test_complex_values_keep_the_bits() -> None:
    used = ours(strict=True)
    inputs = torch.randn(64, 32, dtype=torch.complex64)
    found, expected = steps(lambda: Deep(lambda x: x * x.abs().tanh(), torch.complex64), used, inputs)
    assert equal(found, expected)
    (plan,) = used.plans
    assert plan.recomputed
    assert plan.peak_bytes < plan.stock_bytes


def test_sparse_gradients_are_those_of_eager_mode(caplog: pytest.LogCaptureFixture) -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.deep = nn.Embedding(40, 32, sparse=True), Deep(torch.tanh)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.deep(self.embed(words))
            return result

    used = ours()
    with caplog.at_level(logging.WARNING):
        found, expected = steps(Embedded, used, torch.randint(0, 40, (64,)))
    assert any(value.is_sparse for value in expected)
    pairs = [(a.to_dense(), b.to_dense()) if b.is_sparse else (a, b) for a, b in zip(found, expected)]
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in pairs)
    warnings = [record.message for record in caplog.records if record.name.startswith("echo")]
    assert len(warnings) == (not used.plans), "planned, or left to torch with one warning"


def test_second_gradient_raises_torchs_own_error() -> None:
    torch.manual_seed(2)
    model, x = Deep(torch.tanh), torch.randn(64, 32, requires_grad=True)
    loss = torch.compile(model, backend=ours(0.9, strict=True), fullgraph=True)(x)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.square().sum().backward()


def test_parameters_on_two_devices_have_one_plan() -> None:
    """The second device is torch's meta device: it computes shapes and no values."""

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Deep(torch.tanh), Deep(F.gelu).to("meta")

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.first(x), self.second(x.to("meta"))

    torch.manual_seed(2)
    used, x = ours(strict=True), torch.randn(64, 32)
    model = Split()
    one, other = torch.compile(model, backend=used, fullgraph=True)(x)
    torch.autograd.backward([one, other], [torch.ones(()), torch.ones((), device="meta")])
    found = [parameter.grad for parameter in model.first.parameters()]
    assert all(parameter.grad.device.type == "meta" for parameter in model.second.parameters())
    model.zero_grad(set_to_none=True)
    model.first(x).backward()
    assert equal(found, [parameter.grad for parameter in model.first.parameters()])
    (plan,) = used.plans
    assert plan.peak_bytes <= 0.7 * plan.stock_bytes


@getattr(torch.compiler, "nested_compile_region", lambda function: function)
def region(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w, b).tanh().sin()


class Regions(nn.Module):
    """Calls of a region that torch compiles once, each with activations behind it; torch inlines a single call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(F.gelu(region(x, layer.weight, layer.bias)))
        return x.square().mean()


@pytest.mark.skipif(compat.version() < (2, 13), reason="older versions divide regions in another way")
def test_graph_with_regions_is_planned_and_keeps_the_bits_while_regions_never_run_again() -> None:
    torch.manual_seed(2)
    eager = Regions()
    x = torch.randn(64, 32)
    expected = [*step(torch.compile(eager, backend="aot_eager", fullgraph=True), (x,), eager)]
    for options in ({"recompute": ["gelu*"]}, {"max_overhead": 0.5}):
        torch._dynamo.reset()
        torch.manual_seed(2)
        model = Regions()
        used = ours(None, strict=True, **options)
        assert equal(step(torch.compile(model, backend=used, fullgraph=True), (x,), model), expected)
        (plan,) = used.plans
        assert any(name.startswith("gelu") for name, _ in plan.recomputed)
        regions = [node for _, node in plan.graph.training.operators() if node.forward and "subgraph" in node.op]
        assert len(regions) == 3
        assert all(node.stateful for node in regions)
