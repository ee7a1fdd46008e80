"""A reversal of sequences by itself: MXNet's own runs on one thread, and takes several times as long."""

from __future__ import annotations

from echo.ir.graph import Entry, fused_node
from echo.ir.op_spec import is_true
from echo.passes.patterns.graph_view import Fusion, Pattern, View, local


def match_sequence_reverse(view: View, number: int) -> Fusion | str | None:
    """The reversal along the first axis that this node is: a fusion, or None."""
    node = view.graph.nodes[number]
    if node.op != "SequenceReverse" or node.attrs.get("axis", "0") != "0":
        return None
    data = node.inputs[0]
    lengths = node.inputs[1] if is_true(node.attrs, "use_sequence_length") else None
    shapes = {data: "T,B,R"}
    if lengths is not None:
        shapes[lengths] = "B"
    return Fusion(
        pattern=SEQUENCE_REVERSE.name,
        anchor=number,
        nodes=(fused_node(SEQUENCE_REVERSE.name, node.name, (data, lengths)),),
        outputs={Entry(number): local(0)},
        replaced=frozenset({number}),
        shapes=shapes,
        label="a reversal of sequences",
        min_bytes=(node.inputs[0], 1 << 16),
    )


SEQUENCE_REVERSE = Pattern("sequence_reverse", frozenset({"SequenceReverse"}), match_sequence_reverse)
