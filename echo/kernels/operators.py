"""The fused kernels as operators of MXNet's graphs: what planning has to know of them."""

from __future__ import annotations

from echo.graph import Node

PREFIX = "_echo_"
OUTPUTS = {
    "_echo_lstm_cell": 2, "_echo_gru_cell": 1, "_echo_mlp_score": 1, "_echo_attention": 2, "_echo_layer_norm": 1,
    "_echo_bias_act": 1, "_echo_sequence_reverse": 1, "_echo_relu": 2, "_echo_lstm_layer": 4,
}  # fmt: skip


def num_outputs(node: Node) -> int:
    """How many outputs a node that a fusion puts into a graph has."""
    if node.op == "_split_v2":
        return int(node.attrs["sections"])
    return OUTPUTS.get(node.op, 1)
