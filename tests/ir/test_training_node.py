"""Types and nodes as values: sizes, what shares memory, and JSON there and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from echo.errors import GraphError
from echo.ir.graph import Entry
from echo.ir.training_node import FLAGS, TensorType, TrainingNode, node_from_json, node_to_json, tensor_type

NODE = TrainingNode(
    "Dropout", "drop", (TensorType((2, 3)), TensorType((2, 3), 3)), (Entry(1), Entry(2, 1)), (0,), {"p": "0.5"},
    forward=False, user=None, inplace=((0, 0, True),), ignored=frozenset({1}), external=frozenset({0}),
    untouched=frozenset({1}), random=True, stateful=True, mutates=True, kept=7,
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "itemsize"), [("float32", 4), ("float16", 2), ("uint8", 1), ("int64", 8), ("bfloat16", 2)]
)
def test_sizes(kind: str, itemsize: int) -> None:
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


def test_json_there_and_back() -> None:
    assert node_from_json(json.loads(json.dumps(node_to_json(NODE)))) == NODE
    plain = TrainingNode("tanh", "it", (TensorType((2,)),), user=3)
    assert node_from_json(json.loads(json.dumps(node_to_json(plain)))) == plain


def test_having_is_replace() -> None:
    other = NODE.having(name="other", kept=0)
    assert (other.name, other.kept, other.op, other.inputs) == ("other", 0, "Dropout", NODE.inputs)
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
def test_what_follows(changes: dict[str, Any], masked: bool, unowned: set[int]) -> None:
    node = NODE.having(**changes)
    assert node.is_masked == masked
    assert node.unowned == unowned
    assert not node.is_variable
    assert node.having(op="null").is_variable
