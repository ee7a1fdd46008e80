"""Seconds of operators: products are timed once, chains of pointwise operators are one kernel, nothing is drawn."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.torch.cost import is_heavy, seconds_of  # noqa: E402
from tests.support.torch_models import traced  # noqa: E402

W = torch.randn(64, 64, requires_grad=True)


def chain(w: torch.Tensor) -> torch.Tensor:
    return ((w @ w).sin().cos().exp() @ w).sum()


def test_inner_values_of_a_fused_chain_are_nearly_free() -> None:
    joint = traced(chain, W).joint
    names = [node.name for node in joint.training.nodes]
    fused, plain = (dict(zip(names, seconds_of(joint, fused=mode))) for mode in (True, False))
    assert fused["cos"] == 0
    assert fused["sin"] > 0, "the first reads what the product wrote"
    assert fused["exp"] > 0, "the last writes what the next product reads"
    assert plain["cos"] > 0
    assert fused["mm"] == plain["mm"], "the same timing"


def test_products_and_convolutions_are_heavy() -> None:
    model = lambda w: F.conv2d(w.view(1, 1, 64, 64), w[:3, :3].view(1, 1, 3, 3)).tanh().sum() + (w @ w).sum()  # noqa: E731
    nodes = [*(joint := traced(model, W).joint).forward, *joint.backward]
    heavy = {node.name for node in nodes if is_heavy(node)}
    assert {"convolution", "convolution_backward", "mm"} <= heavy
    assert not {"tanh", "add"} & heavy
