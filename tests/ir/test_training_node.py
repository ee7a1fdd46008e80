"""Types and nodes as values, and operators that read only through their inputs (`tests/operators` checks the table)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echo.errors import GraphError
from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import (
    FLAGS,
    TensorType,
    TrainingNode,
    all_outputs,
    tensor_type,
    why_not_reader,
    why_not_recomputable,
)
from tests.support.made_graphs import Builder

NODE = TrainingNode(
    "Dropout", "drop", (TensorType((2, 3)), TensorType((2, 3), 3)), (Entry(1), Entry(2, 1)), (0,), {"p": "0.5"},
    forward=False, original=None, inplace=((0, 0, True),), shape_only=frozenset({1}), external=frozenset({0}),
    untouched=frozenset({1}), random=True, stateful=True, mutates=True, layout_copy_bytes=7,
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "itemsize"), [("float32", 4), ("float16", 2), ("uint8", 1), ("int64", 8), ("bfloat16", 2)]
)
def test_tensor_type_knows_its_bytes(kind: str, itemsize: int) -> None:
    found = TensorType((2, 3), FLAGS[kind])
    assert (found.dtype, found.elements, found.itemsize, found.bytes) == (kind, 6, itemsize, 6 * itemsize)
    assert TensorType((), FLAGS[kind]).elements == 1


@pytest.mark.parametrize("flag", [-1, len(FLAGS)])
def test_flags_that_are_none(flag: int) -> None:
    with pytest.raises(GraphError):
        TensorType((2,), flag)


def test_equal_types_are_one_object() -> None:
    assert tensor_type((2, 3), 1) is tensor_type((2, 3), 1)
    assert tensor_type((2, 3), 1) == TensorType((2, 3), 1)


def test_having_is_replace() -> None:
    other = NODE.having(name="other", layout_copy_bytes=0)
    assert (other.name, other.layout_copy_bytes, other.op, other.inputs) == ("other", 0, "Dropout", NODE.inputs)
    assert NODE.name == "drop"


@pytest.mark.parametrize(
    ("changes", "masked", "unowned"),
    [
        ({}, True, {0, 1}),
        ({"outputs": NODE.outputs[:1]}, False, {0, 1}),
        ({"op": "tanh"}, False, {0, 1}),
        ({"untouched": frozenset()}, True, {0}),
    ],
)
def test_node_facts_follow_from_its_fields(changes: dict[str, Any], masked: bool, unowned: set[int]) -> None:
    node = NODE.having(**changes)
    assert node.is_masked == masked
    assert node.unowned == unowned
    assert not node.is_variable
    assert node.having(op="null").is_variable


def graph() -> TrainingGraph:
    """x, its tanh, a head and the gradient; node 3 is the gradient, with two inputs and an output."""
    b = Builder()
    x = b.variable("x", 8)
    y = b.forward("tanh", "y", (8,), x)
    head = b.variable("head", 8, forward=False)
    gradient = b.backward("_backward_tanh", "dx", (8,), head, y, inplace=((0, 0, False),), external=frozenset({0}))
    return b.graph([y, gradient])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an input after it": ({"inputs": (Entry(4), Entry(1))}, r"no output \(4, 0, 0\) before it"),
    "itself as input": ({"inputs": (Entry(3), Entry(1))}, "before it"),
    "an output that a node does not have": ({"inputs": (Entry(2, 1), Entry(1))}, "before it"),
    "a negative input": ({"inputs": (Entry(-1), Entry(1))}, "before it"),
    "a dependency far away": ({"control_deps": (90_000_000,)}, "control_deps: no node 90000000 before it"),
    "a dependency on itself": ({"control_deps": (3,)}, "control_deps: no node 3 before it"),
    "a negative dependency": ({"control_deps": (-2,)}, "control_deps: no node -2"),
    "in place of an input far away": ({"inplace": ((5_000_000, 0, False),)}, "inplace: there is no pair of input 5"),
    "in place of a negative input": ({"inplace": ((-1, 0, True),)}, "inplace"),
    "in place, by an output that is not there": ({"inplace": ((0, 1, False),)}, "input 0 and output 1"),
    "ignores an input that is not there": ({"shape_only": frozenset({2})}, "shape_only: expected numbers below 2"),
    "ignores a negative input": ({"shape_only": frozenset({-1})}, "shape_only"),
    "an external output that is not there": ({"external": frozenset({1})}, "external: expected numbers below 1"),
    "an untouched output that is not there": ({"untouched": frozenset({0, 7})}, "untouched: expected numbers below 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_number(name: str) -> None:
    changes, message = BAD[name]
    good = graph()
    nodes = (*good.nodes[:3], replace(good.nodes[3], **changes))
    with pytest.raises(GraphError, match=rf"node 3 \('dx'\): .*{message}|node 3 \('dx'\): {message}"):
        replace(good, nodes=nodes)


@pytest.mark.parametrize("entry", [Entry(4), Entry(3, 1), Entry(-1)])
def test_a_bad_output(entry: Entry) -> None:
    with pytest.raises(GraphError, match="there is no such entry"):
        replace(graph(), outputs=(entry,))


def test_a_good_graph_is_left_alone() -> None:
    good = graph()
    assert replace(good) == good


def test_a_dropout_without_a_mask_is_an_operator_like_others() -> None:
    """In MXNet each has one; a graph of another framework has nodes of one output."""
    node = graph().nodes[1]
    assert not replace(node, op="Dropout").is_masked
    assert replace(node, op="Dropout", outputs=(TensorType((8,)), TensorType((8,)))).is_masked


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
    assert "writes into its input" in why_not_recomputable(node, "cpu", hook)
    assert why_not_recomputable(replace(node, op="BatchNorm"), "cpu", hook) == ""
    assert why_not_recomputable(replace(node, mutates=False), "cpu", hook) == ""


@pytest.mark.parametrize(
    "op", ["Custom", "_foreach", "_while_loop", "_cond", "RNN", "_shuffle", "MakeLoss", "SoftmaxOutput", "MyOwn"]
)
def test_unknown_operators_are_refused(op: str) -> None:
    node = TrainingNode(op, "unknown", (TensorType((2,)),))
    assert why_not_recomputable(node, "cpu", hook=True) == f"{op} is not known to be safe to run twice"


def test_masks_of_cudnn_are_refused() -> None:
    node = TrainingNode("Dropout", "dropped", (TensorType((2,)),), attrs={"p": "0.5"})
    assert "cuDNN" in why_not_recomputable(node, "gpu", hook=True)
    assert why_not_recomputable(replace(node, attrs={"p": "0.5", "cudnn_off": "True"}), "gpu", hook=True) == ""
    assert why_not_recomputable(node, "cpu", hook=True) == ""


def test_batch_norm_on_a_gpu_needs_the_hook() -> None:
    """Its clone leaves the moving statistics as they are; MXNet's own mirroring would move them twice."""
    node = TrainingNode("BatchNorm", "normal", (TensorType((2,)),), mutates=True)
    assert why_not_recomputable(node, "gpu", hook=True) == ""
    assert "cuDNN" in why_not_recomputable(node, "gpu", hook=False)
    assert why_not_recomputable(node, "cpu", hook=False) == ""


@pytest.mark.parametrize(("op", "hook", "outputs"), [("tanh", True, (0,)), ("Pooling", True, (0, 1)),
                                                     ("tanh", False, (0, 1))])  # fmt: skip
def test_outputs_that_are_computed_again(op: str, hook: bool, outputs: tuple[int, ...]) -> None:
    """MXNet's own mirroring replaces a node as a whole."""
    assert all_outputs(TrainingNode(op, "two", (TensorType((2,)),) * 2), hook) == outputs
