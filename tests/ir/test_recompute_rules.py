"""Who reads through its inputs alone; `tests/operators` holds the table against MXNet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echo.ir.recompute_rules import all_outputs, why_not, why_not_reader
from echo.ir.training_node import TensorType, TrainingNode


@pytest.mark.parametrize(
    ("op", "attrs", "position", "reason"),
    [
        ("tanh", {}, 0, ""),
        ("Custom", {}, 0, "Custom is not known to read its inputs through its inputs alone"),
        ("Deconvolution", {}, 0, ""),
        ("Deconvolution", {}, 1, "input 1 of Deconvolution must not move"),
        ("Convolution", {}, 1, ""),
        ("SoftmaxOutput", {"out_grad": "False"}, 0, ""),
        ("SoftmaxOutput", {"out_grad": "True"}, 0, "the gradient of SoftmaxOutput with out_grad=True depends on"),
        ("softmax", {"use_length": "1"}, 1, "the gradient of softmax with use_length=1 depends on"),
        ("LeakyReLU", {"act_type": "leaky"}, 0, ""),
        ("LeakyReLU", {"act_type": "prelu"}, 0, "the gradient of LeakyReLU with act_type=prelu depends on"),
        ("LeakyReLU", {"act_type": "rrelu"}, 0, "LeakyReLU with act_type=rrelu was never tried"),
    ],
)
def test_readers_of_more_than_inputs_have_a_reason(op: str, attrs: dict[str, str], position: int, reason: str) -> None:
    found = why_not_reader(op, attrs, position)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


@pytest.mark.parametrize("hook", [True, False])
def test_operators_that_write_into_inputs_are_refused(hook: bool) -> None:
    node = TrainingNode("tanh", "writer", (TensorType((2,)),), mutates=True)
    assert "writes into its input" in why_not(node, "cpu", hook)
    assert why_not(replace(node, op="BatchNorm"), "cpu", hook) == ""
    assert why_not(replace(node, mutates=False), "cpu", hook) == ""


@pytest.mark.parametrize(
    "op", ["Custom", "_foreach", "_while_loop", "_cond", "RNN", "_shuffle", "MakeLoss", "SoftmaxOutput", "MyOwn"]
)
def test_unknown_operators_are_refused(op: str) -> None:
    node = TrainingNode(op, "unknown", (TensorType((2,)),))
    assert why_not(node, "cpu", hook=True) == f"{op} is not known to be safe to run twice"


def test_masks_of_cudnn_are_refused() -> None:
    node = TrainingNode("Dropout", "dropped", (TensorType((2,)),), attrs={"p": "0.5"})
    assert "cuDNN" in why_not(node, "gpu", hook=True)
    assert why_not(replace(node, attrs={"p": "0.5", "cudnn_off": "True"}), "gpu", hook=True) == ""
    assert why_not(node, "cpu", hook=True) == ""


def test_batch_norm_on_a_gpu_needs_the_hook() -> None:
    """Its clone leaves the moving statistics as they are; MXNet's own mirroring would move them twice."""
    node = TrainingNode("BatchNorm", "normal", (TensorType((2,)),), mutates=True)
    assert why_not(node, "gpu", hook=True) == ""
    assert "cuDNN" in why_not(node, "gpu", hook=False)
    assert why_not(node, "cpu", hook=False) == ""


@pytest.mark.parametrize(("op", "hook", "outputs"), [("tanh", True, (0,)), ("Pooling", True, (0, 1)),
                                                     ("tanh", False, (0, 1))])  # fmt: skip
def test_outputs_that_are_computed_again(op: str, hook: bool, outputs: tuple[int, ...]) -> None:
    """MXNet's own mirroring replaces a node as a whole."""
    assert all_outputs(TrainingNode(op, "two", (TensorType((2,)),) * 2), hook) == outputs
