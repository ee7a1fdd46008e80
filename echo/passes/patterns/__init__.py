"""The patterns whose place fused operators take: one pattern a file, matched by structure.

A pattern has a ``NAME`` and ``match(view, number)``, which returns the `Fusion` that replaces this node, a text that
says why there is none (a near-miss), or None. A fusion can be matched again from its anchor alone.
"""

from __future__ import annotations

from typing import Callable, Mapping, Union

from echo.passes.patterns import (
    attention,
    bias_act,
    cross_entropy,
    dropout,
    gru_cell,
    gru_layer,
    gru_reset,
    layer_norm,
    lstm_cell,
    lstm_layer,
    mlp_score,
    relu,
    rnn,
    rnn_layer,
    sequence_reverse,
    softmax_output,
    weighted_sum,
)
from echo.passes.patterns.graph_view import Fusion, View

Match = Callable[[View, int], Union[Fusion, str, None]]
_ALL = (
    lstm_layer, gru_layer, rnn_layer, rnn, lstm_cell, gru_cell, gru_reset, mlp_score, weighted_sum,
    attention, softmax_output, cross_entropy,
    layer_norm, sequence_reverse, bias_act, dropout, relu,
)  # fmt: skip
LAYERS = frozenset({lstm_layer.NAME, gru_layer.NAME, rnn_layer.NAME})
MASKS = frozenset({dropout.NAME, relu.NAME})  # bits in the place of numbers: only where that lowers planned memory
QUIET = frozenset({bias_act.NAME, relu.NAME})  # most networks have near-misses, which say nothing new
PATTERNS: Mapping[str, Match] = {pattern.NAME: pattern.match for pattern in _ALL}
