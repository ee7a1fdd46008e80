"""What Inductor makes of a joint graph: kernels, copies of weights, scratch memory, and the peak that follows."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.ir.schedule import once, steps_of, values_in_kernels  # noqa: E402
from echo.ir.training_node import TrainingNode  # noqa: E402
from echo.system.process import Deadline  # noqa: E402
from echo.torch import backend, compat  # noqa: E402
from echo.torch.capture import JointGraph  # noqa: E402
from echo.torch.cost import seconds_of  # noqa: E402
from echo.torch.inductor import fusion_groups, is_pointwise, joint_graph_of_inductor  # noqa: E402
from echo.torch.planner import is_replayed, plan_graph  # noqa: E402
from tests.support.torch_models import MODELS, traced  # noqa: E402

W = torch.randn(64, 64, requires_grad=True)


def read(function: Any, *inputs: torch.Tensor) -> JointGraph:
    graph = traced(function, *inputs)
    return joint_graph_of_inductor(graph.module, graph.options["num_fwd_outputs"])


def size_of(node: TrainingNode) -> int:
    return sum(one.bytes for one in node.outputs)


def groups_by_name(function: Any, *inputs: torch.Tensor) -> dict[str, int]:
    return {node.name: group for node, group in fusion_groups(traced(function, *inputs).joint).items()}


def convolve(weight: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    return F.conv2d(images, weight, padding=1).tanh().sum()


# Kernels.


def test_pointwise_operators_that_read_each_other_share_a_kernel() -> None:
    groups = groups_by_name(lambda w: ((w @ w).sin().cos().exp() @ w).sum(), W)
    assert groups["sin"] == groups["cos"] == groups["exp"]


def test_kernels_end_at_other_shapes_and_at_reductions() -> None:
    groups = groups_by_name(lambda w: (w.sin().softmax(1) * w.sum(0).cos()).sum(), W)
    assert "_softmax" not in groups
    assert groups["cos"] not in (groups["sin"], groups["mul"])


def test_kernel_does_not_hold_what_a_product_of_its_own_values_leads_to() -> None:
    """The sum cannot run in the kernel of the sine, which has to be over before the product begins."""
    groups = groups_by_name(lambda w: (w.sin() + w.sin().cos() @ w).exp().sum(), W)
    assert groups["add"] == groups["exp"]
    assert groups["add"] != groups["sin"]


def test_constants_and_casts_are_pointwise_and_products_are_not() -> None:
    joint = traced(lambda w: (w.double() @ w.double()).tanh().sum(), W).joint
    pointwise = {node.name for node in (*joint.forward, *joint.backward) if is_pointwise(node)}
    assert {"_to_copy", "tanh"} <= pointwise
    assert "mm" not in pointwise


def test_chain_that_runs_again_takes_memory_for_its_end_alone() -> None:
    """Sine and cosine are saved for the gradients of both; if they run again, they stay in the gradients' kernel."""
    joint = read(lambda w: (w @ w).sin().cos().exp().sum(), W)
    training = joint.training
    forward = {node.name: number for number, node in enumerate(training.nodes) if node.forward}
    schedule = once(training, [forward[name] for name in ("sin", "cos", "exp")])
    order = [step.node for step in steps_of(training, schedule)]
    nowhere = {(order[step], step < order.index(forward["sum_1"])) for step, _ in values_in_kernels(training, order)}
    assert {(forward["sin"], True), (forward["sin"], False), (forward["cos"], False)} <= nowhere
    assert (forward["mm"], True) not in nowhere, "no kernel computes it"


def test_mask_of_positions_runs_again_where_kernels_compute_it() -> None:
    def masked(w: torch.Tensor) -> torch.Tensor:
        at = torch.arange(64)
        return ((w @ w).masked_fill(at.unsqueeze(1) >= at, 0.0).tanh() @ w).square().sum()

    plain = traced(masked, W).joint
    plans = [plan_graph(joint, seconds_of(joint, fused=fused), memory_budget=1.0, deadline=Deadline.after(10))
             for joint, fused in ((read(masked, W), True), (plain, False))]  # fmt: skip
    again = [{name for name, _ in plan.recomputed} for plan in plans]
    assert {"arange", "ge"} <= again[0] or {"iota", "ge"} <= again[0]
    assert "ge" not in again[1]
    assert all(is_replayed(plan) for plan in plans)


# Convolutions.


def test_weight_in_another_layout_is_copied_until_its_last_reader() -> None:
    weight, images = torch.randn(8, 8, 3, 3, requires_grad=True), torch.randn(2, 8, 9, 9)
    joint = read(convolve, weight, images)
    copies = {node.name: node for node in joint.training.nodes if node.op == "copy"}
    assert sorted(size_of(node) for node in copies.values()) == [4 * weight.numel(), 4 * images.numel()]
    assert all(node.stateful and node.forward for node in copies.values()), "Inductor decides, no plan does"
    numbers = {number for number, node in enumerate(joint.training.nodes) if node.op == "copy"}
    readers = {node.op for node in joint.training.nodes if numbers & {entry.node for entry in node.inputs}}
    assert readers == {"convolution", "convolution_backward"}


def test_weight_in_channels_last_is_not_copied() -> None:
    weight = torch.randn(8, 8, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    images = torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last)
    assert not [node for node in read(convolve, weight, images).training.nodes if node.op == "copy"]


def test_graph_without_convolution_keeps_its_layout() -> None:
    joint = read(lambda w: (w @ w).tanh().sum(), W)
    assert not joint.channels_last
    assert not [node for node in joint.training.nodes if node.op == "copy"]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN, which takes scratch")
def test_convolution_takes_scratch_memory_while_it_runs() -> None:
    weight, images = torch.randn(64, 64, 3, 3, requires_grad=True), torch.randn(2, 64, 9, 9)
    joint = read(convolve, weight, images)
    made = next(node for node in joint.training.nodes if node.op == "convolution_backward")
    assert made.outputs[-1].bytes >= 4 * weight.numel(), "the gradient in oneDNN's own layout"
    number = joint.training.nodes.index(made)
    read_outputs = {entry.index for node in joint.training.nodes for entry in node.inputs if entry.node == number}
    assert len(made.outputs) - 1 not in read_outputs


def test_allocations_of_a_call_leave_out_what_was_there() -> None:
    one = torch.randn(1000)
    peak, kept = compat.allocated(lambda: (one + 1) * 2)
    assert 8000 <= peak < 8100, "and the numbers, as tensors"
    assert kept == 4000
    assert compat.allocated(lambda: one.view(10, 100))[0] == 0


# The peak.


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["100%", "80%"])
@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_predicted_peak_is_near_that_of_the_allocator(name: str, budget: str) -> None:
    torch.manual_seed(1)
    model, inputs = MODELS[name]()
    ours = backend(budget, strict=True)
    compiled = torch.compile(model, backend=ours, fullgraph=True)

    def step() -> None:
        result = compiled(*inputs)
        (result[0] if isinstance(result, tuple) else result).backward()

    step()
    model.zero_grad(set_to_none=True)
    peak, _ = compat.allocated(step)
    (plan,) = ours.plans
    assert plan.peak_bytes == pytest.approx(peak, rel=0.1)
