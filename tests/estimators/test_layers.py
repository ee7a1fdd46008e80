"""Layers by readable names: of a node alone, and of one that MXNet numbered by what it reads."""

from __future__ import annotations

from typing import Any

import pytest

from echo.estimators.layers import Layers, layer_of
from echo.ir.schedule import CLONE_SUFFIX
from echo.ir.training_node import TensorType, TrainingNode
from tests.made_graphs import Builder


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("encoder_l0_t12_out", "encoder_l*"),
        ("lstm0_t3_i2h", "lstm*_*"),
        ("stage1_conv2_fwd", "stage*_conv*"),
        ("softmax", "softmax"),
        ("", "tanh"),
        ("___", "tanh"),
    ],
)
def test_names_of_layers(name: str, layer: str) -> None:
    node: Any = TrainingNode("tanh", name, (TensorType((1,)),))
    assert layer_of(node) == layer


def test_what_has_no_name_counts_to_what_it_reads() -> None:
    b = Builder()
    x = b.variable("x", 250)
    scale = b.forward("exp", "exp0", (250,), x)
    hidden = b.forward("FullyConnected", "encoder_l0_fc", (250,), scale)
    total = b.forward("elemwise_add", "_plus7", (250,), hidden, scale)
    wide = b.forward("Concat", "concat3", (250,), total, hidden)
    named = b.forward("broadcast_add", "dec_add4", (250,), wide)
    again = b.backward("Concat", f"concat3{CLONE_SUFFIX}", (250,), total)
    gradient = b.backward("_backward_Concat", "concat3_backward", (250,), again)
    other = b.backward("_backward_add", "dec_add4_backward", (250,), gradient)
    layers = Layers(b.graph((named, other)))
    assert [layers(entry.node) for entry in (hidden, total, wide, again, gradient)] == ["encoder_l*"] * 5
    assert [layers(entry.node) for entry in (named, other)] == ["dec_add*"] * 2
    assert layers(scale.node) == "exp*", "it reads what the user hands in"
