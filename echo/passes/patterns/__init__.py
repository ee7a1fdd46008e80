"""The patterns that fused operators replace: one row each, matched by structure at the operators of its anchors."""

from __future__ import annotations

from typing import Mapping

from echo.passes.patterns.attention import ATTENTION, MLP_SCORE, WEIGHTED_SUM
from echo.passes.patterns.graph_view import Pattern
from echo.passes.patterns.recurrent_cells import GRU_CELL, GRU_RESET, LSTM_CELL
from echo.passes.patterns.recurrent_layers import GRU_LAYER, LSTM_LAYER, RNN_LAYER
from echo.passes.patterns.rnn import RNN
from echo.passes.patterns.single_operators import (
    BATCH_NORM_RELU,
    BIAS_ACT,
    DROPOUT,
    LAYER_NORM,
    RELU,
    SEQUENCE_REVERSE,
)
from echo.passes.patterns.softmax_loss import CROSS_ENTROPY, SOFTMAX_OUTPUT

PATTERNS: Mapping[str, Pattern] = {
    pattern.name: pattern
    for pattern in (
        LSTM_LAYER, GRU_LAYER, RNN_LAYER, RNN, LSTM_CELL, GRU_CELL, GRU_RESET, MLP_SCORE, WEIGHTED_SUM,
        ATTENTION, SOFTMAX_OUTPUT, CROSS_ENTROPY,
        LAYER_NORM, SEQUENCE_REVERSE, BATCH_NORM_RELU, BIAS_ACT, DROPOUT, RELU,
    )
}  # fmt: skip
LAYERS = frozenset(name for name, pattern in PATTERNS.items() if pattern.is_layer)
MASKS = frozenset(name for name, pattern in PATTERNS.items() if pattern.is_mask)
QUIET = frozenset(name for name, pattern in PATTERNS.items() if pattern.is_quiet)
