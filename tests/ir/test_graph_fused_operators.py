"""Fused operators hold on to what their gradients read, and to nothing else."""

from __future__ import annotations

import pytest

from echo.ir.graph import PREFIX, READS, Entry, Node, fused_node, num_outputs
from echo.ir.op_spec import GRADIENT_ATTRIBUTE

A, B, C = (Entry(number) for number in range(3))


def test_unread_input_of_a_gradient_is_replaced_by_the_first_read() -> None:
    """Of relu, the gradient reads its output's gradient and the bits: neither the input nor the output."""
    node = fused_node("relu", "it", (A,))
    assert (node.op, node.name, node.inputs) == (PREFIX + "relu", "it", (A,))
    assert node.attrs == {"present": "1", GRADIENT_ATTRIBUTE: "_backward__echo_relu>_backward__echo_relu:0,0,0,0,4"}


def test_inputs_that_are_not_there_have_no_positions() -> None:
    node = fused_node("attention", "it", (A, B, C, None, None), {"scale": "1"})
    assert node.inputs == (A, B, C)
    assert node.attrs["present"] == "11100"
    assert node.attrs["scale"] == "1"
    # gradients of both outputs, of which one is read; three inputs; two outputs
    assert node.attrs[GRADIENT_ATTRIBUTE].endswith(":0,0,2,3,4,5,6")


def test_a_gradient_that_reads_nothing_is_left_alone() -> None:
    assert GRADIENT_ATTRIBUTE not in fused_node("pack_mask", "it", (A,)).attrs


@pytest.mark.parametrize(
    ("node", "count"),
    [
        (Node("SliceChannel", "it", attrs={"num_outputs": "5"}), 5),
        (Node("Dropout", "it"), 2),
        (Node("tanh", "it"), 1),
        (Node(PREFIX + "lstm_layer", "it"), 4),
        (Node(PREFIX + "gru_cell", "it"), 1),
    ],
)
def test_number_of_outputs_follows_from_attributes(node: Node, count: int) -> None:
    assert num_outputs(node) == count


def test_every_row_has_a_bit_for_each_tensor() -> None:
    assert all(set("".join(row)) <= {"0", "1"} and all(row) for row in READS.values())
