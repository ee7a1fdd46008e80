"""Workspaces of fused operators in a training graph: each is asked with its own shapes and attributes."""

from __future__ import annotations

import pytest

from echo.errors import KernelError
from echo.estimators.workspace import workspaces
from echo.ir.graph import PREFIX, VARIABLE, Entry, fused_node
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from echo.kernels.library import operator_workspace


def norm(number: int, rows: int, vector: int = 96) -> list[TrainingNode]:
    """A layer norm of so many rows behind its inputs, the first of which is node ``number``."""
    shapes = [(rows, 96), (vector,), (96,)]
    variables = [TrainingNode(VARIABLE, f"x{number + k}", (TensorType(shape),)) for k, shape in enumerate(shapes)]
    node = fused_node("layer_norm", "norm", [Entry(number + k) for k in range(3)], {"eps": "1e-5"})
    return [*variables, TrainingNode(node.op, "norm", (TensorType(shapes[0]),), node.inputs, attrs=node.attrs)]


def graph(*nodes: TrainingNode) -> TrainingGraph:
    return TrainingGraph(nodes, (Entry(len(nodes) - 1),), 1, 0)


@pytest.mark.parametrize(("device", "backend"), [("cpu", "cpu"), ("gpu", "cuda")])
def test_each_fused_operator_is_asked(device: str, backend: str) -> None:
    shapes = [[(rows, 96), (96,), (96,)] for rows in (64, 8)]
    expected = [operator_workspace("layer_norm", {"eps": "1e-5"}, given, "float32", backend) for given in shapes]
    assert workspaces(graph(*norm(0, 64), *norm(4, 8)), device) == {3: expected[0], 7: expected[1]}
    assert min(expected) > 0


def test_attributes_count() -> None:
    """The gradient of a softmax output needs a little more where it counts labels."""
    rows = 500_000  # a number for each of them takes more than the room of cuBLAS
    types = [TensorType(shape) for shape in ((rows, 20), (300, 20), (300,), (rows,))]
    variables = [TrainingNode(VARIABLE, f"x{k}", (tensor,)) for k, tensor in enumerate(types)]
    sizes = []
    for normalization in ("0", "2"):
        node = fused_node("softmax_output", "loss", [Entry(k) for k in range(4)], {"normalization": normalization})
        loss = TrainingNode(node.op, "loss", (TensorType((rows, 300)),), node.inputs, attrs=node.attrs)
        sizes.append(workspaces(graph(*variables, loss), "gpu")[4])
    assert 0 < sizes[0] < sizes[1]


def test_others_are_not_asked() -> None:
    x = TrainingNode(VARIABLE, "x", (TensorType((8, 8)),))
    y = TrainingNode("tanh", "y", (TensorType((8, 8)),), (Entry(0),))
    gradient = TrainingNode(f"_backward_{PREFIX}relu", "z", (TensorType((8, 8)),), (Entry(1),), forward=False)
    assert workspaces(graph(x, y, gradient), "cpu") == {}


def test_what_a_kernel_does_not_take_is_an_error() -> None:
    with pytest.raises(KernelError, match="layer_norm"):
        workspaces(graph(*norm(0, 64, vector=95)), "cpu")
