"""Inputs that a program changes before the backward pass, unseen by torch: gradients have eager mode's bits."""

from __future__ import annotations

import random
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from torch import fx, nn  # noqa: E402

from benchmarks.torch_frontier import evaluated  # noqa: E402
from echo.ir.schedule import first_backward  # noqa: E402
from echo.system.process import Deadline  # noqa: E402
from echo.torch import GraphPlan, PeakTracker, backend, planner, snapshots, tracking  # noqa: E402
from echo.torch.capture import JointGraph, joint_graph  # noqa: E402
from echo.torch.partition import partitioned  # noqa: E402
from echo.torch.planned_graph import planned_graph  # noqa: E402
from echo.torch.verify import differences  # noqa: E402
from tests.support.torch_models import MODELS, Traced, built, equal, traced  # noqa: E402

EVERYTHING = ["addmm*", "tanh*", "sub*", "div*", "*batch_norm*", "where*"]


class Scaled(torch.autograd.Function):
    """Computes in the forward pass what only its gradient reads."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x * scale)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.saved_tensors[0], None


class Changing(nn.Module):
    """Layers that read parameters, buffers and an input which eager mode does not save."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(nn.Linear(32, 32) for _ in range(4)), nn.BatchNorm1d(32).eval()
        self.register_buffer("mean", torch.ones(32))
        self.register_buffer("std", torch.full((32,), 2.0))
        self.register_buffer("late", torch.arange(32) > 20)
        self.register_buffer("scale", torch.rand(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - self.mean) / self.std
        for layer in self.layers:
            x = torch.tanh(layer(x))
        x = Scaled.apply(torch.tanh(torch.where(self.late, 0.0, self.norm(x))), self.scale)
        return x.square().sum()


def _zero_by_numpy(model: Changing, x: torch.Tensor) -> None:
    x.numpy()[:] = 0
    model.std.numpy()[:] = 3


CHANGES: dict[str, Callable[[Changing, torch.Tensor], Any]] = {
    "nothing": lambda model, x: None,
    "bias": lambda model, x: model.layers[1].bias.data.mul_(2),
    "weights that gradients read, too": lambda model, x: [layer.weight.data.mul_(2) for layer in model.layers],
    "buffer": lambda model, x: model.mean.data.zero_(),
    "statistics": lambda model, x: model.norm.running_mean.data.copy_(torch.ones(32)),
    "mask": lambda model, x: model.late.data.logical_not_(),
    "what gradients alone are computed from": lambda model, x: model.scale.data.add_(1),
    "input and buffer by numpy": _zero_by_numpy,
}
# Of these, eager mode's own gradients read the input as it is then.
SEEN = ("weights that gradients read, too", "statistics", "mask")


def changed_step(change: Callable[[Changing, torch.Tensor], Any], used: Any = None) -> list[Any]:
    torch.manual_seed(3)
    model, x = Changing(), torch.randn(64, 32)
    loss = (model if used is None else torch.compile(model, backend=used, fullgraph=True))(x)
    change(model, x)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("name", CHANGES)
def test_unseen_change_before_backward_keeps_the_bits_and_the_predicted_peak(name: str) -> None:
    expected, tracker = changed_step(CHANGES[name]), PeakTracker()
    used = backend(recompute=EVERYTHING, compiler=tracking(tracker), strict=True)
    assert equal(changed_step(CHANGES[name], used), expected)
    (plan,) = used.plans
    assert len(plan.recomputed) > 8
    assert tracker.peak == plan.peak_bytes
    assert equal(expected, changed_step(CHANGES["nothing"])) is (name not in SEEN)


def test_change_in_place_of_a_small_input_is_no_error_where_eager_mode_has_none() -> None:
    def change(model: Changing, x: torch.Tensor) -> None:
        with torch.no_grad():
            model.layers[1].bias.add_(1)
            model.mean.zero_()

    expected = changed_step(change)
    assert equal(changed_step(change, backend(recompute=EVERYTHING, compiler="aot_eager", strict=True)), expected)


def with_snapshots(graph: Traced) -> JointGraph:
    return joint_graph(graph.module, graph.options["num_fwd_outputs"], snapshots=True)


@pytest.mark.parametrize("name", MODELS)
def test_random_schedules_with_snapshots_keep_the_bits_and_the_replayed_peak(name: str) -> None:
    model, inputs = built(name)
    graph = traced(model, *inputs)
    joint = with_snapshots(graph)
    planned, copies = planned_graph(joint, (1.0,) * len(joint.order)), 0
    nodes = [number for number, node in joint.training.operators() if node.forward and not node.stateful]
    backward = range(first_backward(joint.training), len(joint.order))
    for seed in range(3):
        generator = random.Random(seed)
        schedule = {number: tuple(sorted(generator.sample(backward, generator.choice((1, 2)))))
                    for number in nodes if generator.random() < 0.5}  # fmt: skip
        pair = partitioned(graph.module, joint, schedule, graph.inputs, **graph.options)
        assert differences(pair, graph.module, graph.inputs, **graph.options) == [], f"seed {seed}"
        peak, _ = evaluated(pair, graph.options["num_fwd_outputs"], {})
        if name != "resnet":  # new statistics count to the end of the step
            assert peak == planned.replayed(schedule).bytes, f"seed {seed}"
        copies += len(copies_in(pair[0]))
    assert copies >= 3


def copies_in(module: fx.GraphModule) -> list[str]:
    return [node.name for node in module.graph.nodes if node.name.endswith("_snapshot")]


def test_snapshot_that_nothing_reads_again_is_not_made_and_takes_no_memory() -> None:
    model, inputs = built("gpt")
    graph = traced(model, *inputs)
    joint = with_snapshots(graph)
    assert joint.snapshots
    assert joint.training.planned_bytes == graph.joint.training.planned_bytes
    forward, _ = partitioned(graph.module, joint, {}, graph.inputs, **graph.options)
    assert copies_in(forward) == []


def test_plan_with_snapshots_lists_and_keeps_their_bytes() -> None:
    used = backend(recompute=EVERYTHING, compiler="aot_eager", strict=True)
    changed_step(CHANGES["nothing"], used)
    (plan,) = used.plans
    lines = [line for line in plan.residuals() if snapshots.REASON in line]
    assert any(line.startswith("128 bytes, output 0 of input snapshot ") for line in lines), plan.residuals()
    loaded = GraphPlan.from_json(plan.to_json())
    assert (loaded.peak_bytes, loaded.residuals()) == (plan.peak_bytes, plan.residuals())


def test_pattern_for_everything_matches_no_snapshot() -> None:
    w = torch.randn(8, 8, requires_grad=True)
    used = backend(recompute=["*"], compiler="aot_eager", strict=True)
    torch.compile(lambda x: (x @ w + w[0]).tanh().sum(), backend=used)(torch.randn(16, 8)).backward()
    assert {name for name, _ in used.plans[0].recomputed} >= {"mm"}


def test_graph_with_snapshots_alone_is_planned_as_one_without_kernels() -> None:
    """What is computed from nothing does not run again for free."""
    model, inputs = built("gpt")
    joint = with_snapshots(traced(model, *inputs))
    seconds = tuple(0.0 if node.is_variable else 1.0 for node in joint.training.nodes)
    plan = planner.plan_graph(joint, seconds, memory_budget=0.95, deadline=Deadline.after(5))
    read = {name for name, _ in plan.recomputed}
    assert read
    assert not any(name.startswith(("arange", "full", "ones", "iota")) for name in read), read


@pytest.mark.parametrize(("value", "size"), [
    (torch.ones(8, 4), 128), (torch.ones(8, 4).t(), 128), (torch.ones(64, 4)[8:16], 128), (torch.ones(1, 5), 20),
    (torch.ones(4, 4, device="meta"), 512), (torch.ones(()), 4), (torch.ones(1 << 14), 1 << 16),
    (torch.ones((1 << 14) + 1), 0), (torch.ones(4).expand(3, 4), 0), (torch.ones(8, 4)[:, ::2], 0),
    (torch.ones(2, dtype=torch.complex64).conj(), 0), (torch.ones(0), 0), (3, 0), (None, 0),
])  # fmt: skip
def test_snapshot_has_the_bytes_of_a_small_dense_input(value: Any, size: int) -> None:
    node = fx.Graph().placeholder("x")
    node.meta["val"] = value
    assert snapshots.snapshot_bytes(node) == size


def test_input_that_the_step_writes_or_another_view_reads_has_no_snapshot() -> None:
    w, written, strided = torch.randn(8, 8, requires_grad=True), torch.ones(8), torch.ones(16)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x @ w + written).tanh() + strided.as_strided((8,), (2,)).sin() + w[0]
        written.add_(1)
        return y.square().sum()

    joint = with_snapshots(traced(function, torch.randn(4, 8)))
    shapes = [tuple(node.meta["val"].shape) for node in joint.snapshots]
    assert sorted(shapes) == [(4, 8), (8, 8)]
