"""Graphs that are written from schedules: copies where they are read, everything else as torch's default has it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import random  # noqa: E402

import torch.nn.functional as F  # noqa: E402

from echo.ir.schedule import first_backward, once, steps_of  # noqa: E402
from echo.torch import compat  # noqa: E402
from echo.torch.partition import COPY_SUFFIX, partitioned  # noqa: E402
from echo.torch.safety import is_mutable, operator_name  # noqa: E402
from echo.torch.verify import differences  # noqa: E402
from tests.support.torch_models import MODELS, Traced, built, traced  # noqa: E402

W = torch.randn(8, 8, requires_grad=True)


def names(module: torch.fx.GraphModule, op: str = "call_function") -> list[str]:
    return [node.name for node in module.graph.nodes if node.op == op]


def random_schedule(graph: Traced, seed: int) -> dict[int, tuple[int, ...]]:
    generator, training = random.Random(seed), graph.joint.training
    nodes = [number for number, node in training.operators() if node.forward and not node.stateful]
    backward = range(first_backward(training), len(training.nodes))
    return {number: tuple(sorted(generator.sample(backward, generator.choice((1, 1, 2, 3)))))
            for number in nodes if generator.random() < 0.6}  # fmt: skip


def test_nothing_recomputed_is_the_default_partition() -> None:
    graph = traced(lambda w: F.layer_norm(w @ w, (8,)).tanh().sum(), W)
    ours = partitioned(graph.module, graph.joint, {}, graph.inputs, **graph.options)
    torchs = compat.default_partition(compat.copied(graph.module), graph.inputs, **graph.options)
    for one, other in zip(ours, torchs):  # views that only gradients read may be in either
        assert set(names(one)) ^ set(names(other)) <= {"detach", "detach_1", "t", "t_1"}
    assert differences(ours, graph.module, graph.inputs, **graph.options) == []


def test_node_runs_again_just_before_each_reader() -> None:
    """A node of three schedule is copied three times, each right before what reads it."""

    def function(w: torch.Tensor) -> torch.Tensor:
        x = (w @ w).exp()
        return ((x.sin() @ w).sin() * x.cos()).sum()

    graph = traced(function, W)
    joint = graph.joint
    (number,) = (n for n, node in joint.training.operators() if node.op == "exp")
    readers = [n for n, node in joint.training.operators()
               if not node.forward and number in [entry.node for entry in node.inputs]]  # fmt: skip
    assert len(readers) > 2
    forward, backward = partitioned(graph.module, joint, {number: tuple(readers)}, graph.inputs, **graph.options)
    order = names(backward)
    copies = [place for place, name in enumerate(order) if name.startswith("exp" + COPY_SUFFIX)]
    assert len(copies) == len(readers)
    nodes = [node for node in backward.graph.nodes if node.op == "call_function"]
    for place in copies:
        assert list(nodes[place].users) == [nodes[place + 1]], order
    saved = [node.name for node in next(iter(forward.graph.find_nodes(op="output"))).args[0]]
    assert "exp" not in saved
    assert "mm" in saved
    assert graph.module.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default), "the input is kept"


def test_view_of_a_parameter_is_made_again_from_the_parameter() -> None:
    """Inductor would take a saved one for memory that the backward pass frees."""
    graph = traced(lambda w, x: F.linear(F.linear(x, w).tanh(), w.t().view(8, 8).t()).sum(), W, W.detach())
    _, backward = partitioned(graph.module, graph.joint, {}, graph.inputs, **graph.options)
    saved = names(backward, "placeholder")
    assert any(name.startswith("primals_") for name in saved)
    assert not [name for name in saved if name.split("_")[0] in {"t", "permute", "view"}]
    assert differences(
        partitioned(graph.module, graph.joint, {}, graph.inputs, **graph.options),
        graph.module, graph.inputs, **graph.options,
    ) == []  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_random_schedules_keep_every_bit(name: str) -> None:
    model, inputs = built(name)
    graph = traced(model, *inputs)
    runs = 0
    for seed in range(3):
        schedule = random_schedule(graph, seed)
        joint = graph.joint
        pair = partitioned(graph.module, joint, schedule, graph.inputs, **graph.options)
        assert differences(pair, graph.module, graph.inputs, **graph.options) == [], f"seed {seed}"
        copies = [node for node in pair[1].graph.nodes if COPY_SUFFIX in node.name and node.op == "call_function"]
        expected = sum(step.node != step.position for step in steps_of(joint.training, schedule))
        assert len(copies) >= expected > 0, f"seed {seed}"
        assert not any(is_mutable(node) or operator_name(node)[-7:] == "dropout" for node in copies)
        runs += expected
    assert runs > 5


def test_product_of_dropout_uses_the_saved_mask() -> None:
    graph = traced(lambda w: F.dropout((w @ w).tanh(), 0.25, True).square().sum(), W)
    joint = graph.joint
    (node,) = joint.masks
    schedule = once(joint.training, [joint.number_of[node]])
    forward, backward = partitioned(graph.module, joint, schedule, graph.inputs, **graph.options)
    again = [one for one in backward.graph.nodes if COPY_SUFFIX in one.name]
    assert [operator_name(one) for one in again] == ["native_dropout_backward"]
    assert again[0].args[2] == pytest.approx(4 / 3)
    assert not any(operator_name(one) == "native_dropout" for one in backward.graph.nodes)
    assert differences((forward, backward), graph.module, graph.inputs, **graph.options) == []


def test_marks_of_checkpoints_are_wishes_that_do_not_reach_torch() -> None:
    from torch.utils.checkpoint import checkpoint

    graph = traced(
        lambda w: checkpoint(lambda x: F.dropout((x @ x).tanh(), 0.5, True) @ x, w, use_reentrant=False).sum(), W
    )
    assert any("recompute" in node.meta for node in graph.module.graph.nodes), "torch marks what a checkpoint holds"
    pair = partitioned(graph.module, graph.joint, {}, graph.inputs, **graph.options)
    assert not any(
        "recompute" in node.meta for module in pair for node in module.graph.nodes if node.op == "call_function"
    )
    assert differences(pair, graph.module, graph.inputs, **graph.options) == []
