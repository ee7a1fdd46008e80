"""A step of a plan against torch's default partition: nothing for right plans, names for wrong ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import torch.nn.functional as F  # noqa: E402

from echo.torch import compat  # noqa: E402
from echo.torch.verify import differences  # noqa: E402
from tests.support.torch_models import Traced, activation_budget, traced  # noqa: E402

W = torch.randn(8, 8, requires_grad=True)


def pair_of(graph: Traced) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    return compat.default_partition(compat.copied(graph.module), graph.inputs, **graph.options)


def found(graph: Traced, pair: tuple[torch.fx.GraphModule, torch.fx.GraphModule]) -> list[str]:
    return differences(pair, graph.module, graph.inputs, **graph.options)


def test_equal_graphs_have_no_differences_and_draw_no_numbers() -> None:
    graph = traced(lambda w: F.dropout((w @ w).tanh(), 0.5, True).sum(), W)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    assert found(graph, pair_of(graph)) == []
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(("half", "wrong"), [(0, "output 0"), (1, "gradient 0")])
def test_wrong_operator_is_found(half: int, wrong: str) -> None:
    graph = traced(lambda w: (w @ w).exp().sum(), W)
    pair = pair_of(graph)
    (node, *_) = (
        one for one in pair[half].graph.nodes if one.target in (torch.ops.aten.sum.default, torch.ops.aten.mul.Tensor)
    )
    with pair[half].graph.inserting_after(node):
        doubled = pair[half].graph.call_function(torch.ops.aten.mul.Tensor, (node, 2.0))
        node.replace_all_uses_with(doubled, lambda user: user is not doubled)
    pair[half].recompile()
    assert wrong in found(graph, pair)


def test_mask_that_is_drawn_again_is_found() -> None:
    """What torch's partitioner does at a budget of zero."""
    graph = traced(lambda w: F.dropout((w @ w).tanh(), 0.5, True).square().sum(), W)
    with activation_budget(0.0):
        pair = compat.min_cut_partition(compat.copied(graph.module), graph.inputs, **graph.options)
    drawn = [node for node in pair[1].graph.nodes if "native_dropout.default" in str(node.target)]
    assert bool(found(graph, pair)) is bool(drawn)


def test_new_value_of_a_buffer_is_compared() -> None:
    buffer = torch.ones(8)

    def function(w: torch.Tensor) -> torch.Tensor:
        buffer.add_(1)
        return (w * buffer).sum()

    graph = traced(function, W)
    pair = pair_of(graph)
    assert found(graph, pair) == []
    (node,) = pair[0].graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    node.update_arg(1, 2)
    pair[0].recompile()
    assert "output 0" in found(graph, pair)


def test_symbolic_sizes_are_made_up_by_their_hints() -> None:
    graph = traced(lambda w, x: (x @ w).tanh().sum(), W, torch.randn(6, 8), dynamic=True)
    assert found(graph, pair_of(graph)) == []
