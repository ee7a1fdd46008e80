"""Storages, views, numbers, dropout and effects of joint graphs as nodes of training graphs."""

from __future__ import annotations

from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.errors import UnsupportedError  # noqa: E402
from echo.ir.schedule import replay  # noqa: E402
from echo.torch import compat  # noqa: E402
from echo.torch.capture import JointGraph, joint_graph, mask_of  # noqa: E402
from echo.torch.storages import Storages  # noqa: E402
from tests.support.torch_models import traced  # noqa: E402

W = torch.ones(8, 8, requires_grad=True)


def with_gradient(value: Callable[..., torch.Tensor], gradient: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A function of one input, whose gradient is computed from that and from what arrives."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return value(x)

        @staticmethod
        def backward(ctx: Any, arrived: torch.Tensor) -> torch.Tensor:
            return gradient(*ctx.saved_tensors, arrived)

    apply: Callable[..., Any] = Function.apply
    return apply


EARLY = with_gradient(torch.sin, lambda x, arrived: x.cos() * arrived)
FIRST_ROW = with_gradient(torch.sum, lambda x, arrived: (x[0].cos() * arrived).expand(x.shape))
OWN_GRADIENT = with_gradient(torch.clone, lambda x, arrived: x - 1)  # ignores what arrives, as MXNet's losses do


def operators(joint: JointGraph, forward: bool) -> list[str]:
    return [node.op for _, node in joint.training.operators() if node.forward is forward]


def test_views_are_folded_into_their_storage() -> None:
    """split gives views, so that nothing but the product makes memory; its readers read the product."""
    joint = traced(lambda w: (lambda a, b: (a.t() @ b).sum())(*(w @ w).split(4, 1)), W).joint
    assert operators(joint, True) == ["mm", "mm", "sum"]
    product = joint.training.nodes[len(joint.order) - len(joint.training.operators())]
    assert product.outputs[0].bytes == 8 * 8 * 4
    (split,) = (node for node in joint.forward if "split" in node.name)
    storage = Storages(joint.aliases, joint.number_of, joint.masks).entry(split)
    assert storage is not None
    assert storage.node == joint.number_of[joint.order[len(joint.order) - len(joint.training.operators())]]


def test_variables_take_no_bytes_and_outputs_live_to_the_end() -> None:
    joint = traced(lambda w: (w @ w).tanh().sum(), W).joint
    training = joint.training
    assert all(tensor.bytes == 0 for node in training.nodes if node.is_variable for tensor in node.outputs)
    ends = {training.nodes[entry.node].op for entry in training.outputs}
    assert "sum" in ends
    assert len(training.outputs) == 2, "the loss and one gradient"
    order = [number for number, _ in training.operators()]
    assert replay(training, order, (0.0,) * len(training.nodes)).bytes == training.planned_bytes > 0


def test_outputs_of_one_operator_are_separate() -> None:
    joint = traced(lambda w: F.layer_norm(w @ w, (8,)).square().sum(), W).joint
    (norm,) = (node for _, node in joint.training.operators() if node.op == "native_layer_norm")
    assert [tensor.bytes for tensor in norm.outputs] == [256, 32, 32]
    readers = [entry.index for _, node in joint.training.operators() for entry in node.inputs
               if joint.training.nodes[entry.node] is norm]  # fmt: skip
    assert {1, 2} <= set(readers), "the gradient reads mean and deviation"


def test_dropout_is_a_mask_and_a_product() -> None:
    joint = traced(lambda w: F.dropout(w @ w, 0.25, True).square().sum(), W).joint
    assert operators(joint, True)[:3] == ["mm", "native_dropout_mask", "native_dropout"]
    (node,) = joint.masks
    mask, product = joint.training.nodes[joint.masks[node]], joint.training.nodes[joint.number_of[node]]
    assert (mask.stateful, product.stateful) == (True, False)
    assert (mask.outputs[0].bytes, product.outputs[0].bytes) == (64, 256)
    assert joint.masks[node] in [entry.node for entry in product.inputs]
    assert mask_of(node) is not None
    assert mask_of(joint.order[0]) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_product_with_a_mask_has_the_bits_of_dropout(dtype: torch.dtype) -> None:
    for rate in (0.1, 0.25, 1 / 3, 0.5, 0.9):
        x = torch.randn(999, dtype=dtype)
        result, mask = torch.ops.aten.native_dropout(x, rate, True)
        assert torch.equal(torch.ops.aten.native_dropout_backward(x, mask, 1 / (1 - rate)), result)


def test_dropout_of_small_floats_is_one_node() -> None:
    """Its gradient rounds the factor to bfloat16 first."""
    joint = traced(lambda w: F.dropout((w @ w).bfloat16(), 0.1, True).square().sum(), W).joint
    assert joint.masks == {}
    assert "native_dropout" in {node.name for node in joint.reasons}


def test_random_and_written_values_never_run_again() -> None:
    """A buffer's new value is an output of the graph; the old one is gone when the backward pass begins."""
    buffer = torch.ones(8)

    def function(w: torch.Tensor) -> torch.Tensor:
        shifted = (w @ w) + buffer
        buffer.add_(1)
        return (shifted.sin() + torch.rand_like(shifted)).square().sum()

    joint = traced(function, W).joint
    reasons = {node.name: reason for node, reason in joint.reasons.items()}
    assert reasons["rand_like"] == "rand_like draws random numbers"
    written = [
        name for name, reason in reasons.items() if reason == "it reads an input that is written in the same step"
    ]
    assert len(written) == 2, "the sum, and the new value"
    assert all(name.startswith("add") for name in written)
    assert not {"mm", "sin"} & reasons.keys()
    assert {node.name for _, node in joint.training.operators() if node.stateful} == reasons.keys()


def test_write_inside_of_a_graph_stays_in_the_forward_pass() -> None:
    graph = traced(lambda w: (w @ w).tanh().sum(), W)
    (weight,) = (node for node in graph.module.graph.nodes if node.name == "primals_1")
    (product,) = (node for node in graph.module.graph.nodes if node.name == "mm")
    with graph.module.graph.inserting_before(next(iter(reversed(graph.module.graph.nodes)))):
        copy = graph.module.graph.call_function(torch.ops.aten.copy_.default, (weight, product))
    copy.meta["val"] = weight.meta["val"]
    joint = graph.joint
    assert copy in joint.forward
    assert joint.training.nodes[joint.number_of[copy]].outputs[0].bytes == 0
    reasons = {node.name: reason for node, reason in joint.reasons.items()}
    assert reasons[copy.name] == "copy_ writes into its input"
    assert reasons["mm"] == "it reads an input that is written in the same step"


@pytest.mark.skipif(compat.version() < (2, 8), reason="older graphs do not show whether the input is written")
def test_backward_nodes_without_tangent_run_just_before_their_reader() -> None:
    """1 - tanh squared needs no tangent: it runs in the backward pass, where it is read."""
    joint = traced(EARLY, W).joint
    backward = [node.name for node in joint.backward]
    assert backward.index("cos") < backward.index("mul")
    assert "cos" not in [node.name for node in joint.forward]


def test_backward_node_that_is_smaller_than_its_input_runs_in_the_forward_pass() -> None:
    """The cosine of the first row alone is kept, not the product that it is a row of."""
    joint = traced(lambda w: FIRST_ROW(w @ w), W).joint
    forward = [node.name for node in joint.forward]
    assert forward.index("cos") == forward.index("mm") + 2, "just after its input, a view between them"
    assert "cos" not in [node.name for node in joint.backward]


def test_sums_of_gradients_without_a_tangent_run_as_they_come() -> None:
    def unrolled(w: torch.Tensor) -> torch.Tensor:
        x = w
        for _ in range(4):
            x = torch.tanh(x @ w)
        return OWN_GRADIENT(x).sum()

    names = [node.name for node in traced(unrolled, W).joint.backward]
    sums = [at for at, name in enumerate(names) if name.startswith("add")]
    products = [at for at, name in enumerate(names) if name.startswith("mm")]
    assert len(sums) >= 3
    assert sums[0] < products[-2], "not when all products are there"


def test_symbolic_sizes_are_numbers_of_the_forward_pass() -> None:
    joint = traced(
        lambda w, x: (x.view(x.shape[0] * 2, -1) @ w).tanh().sum(),
        W.detach()[:4].requires_grad_(),
        torch.ones(6, 8),
        dynamic=True,
    ).joint
    assert joint.training.planned_bytes > 0
    assert all(not node.forward or node.outputs for _, node in joint.training.operators())
    assert all(node.op != "sym_size" for node in joint.training.nodes)


def test_inference_is_unsupported() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x.sin())
    with pytest.raises(UnsupportedError, match="no backward pass"):
        joint_graph(graph, 1)
