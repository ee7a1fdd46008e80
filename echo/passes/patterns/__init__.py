"""The patterns that fused operators replace: one row each, matched by structure at the operators of its anchors."""

from __future__ import annotations

from typing import Mapping

from echo.passes.patterns.attention import ATTENTION
from echo.passes.patterns.bias_act import BIAS_ACT
from echo.passes.patterns.cross_entropy import CROSS_ENTROPY
from echo.passes.patterns.dropout import DROPOUT
from echo.passes.patterns.graph_view import Pattern
from echo.passes.patterns.gru_cell import GRU_CELL
from echo.passes.patterns.gru_layer import GRU_LAYER
from echo.passes.patterns.gru_reset import GRU_RESET
from echo.passes.patterns.layer_norm import LAYER_NORM
from echo.passes.patterns.lstm_cell import LSTM_CELL
from echo.passes.patterns.lstm_layer import LSTM_LAYER
from echo.passes.patterns.mlp_score import MLP_SCORE
from echo.passes.patterns.relu import RELU
from echo.passes.patterns.rnn import RNN
from echo.passes.patterns.rnn_layer import RNN_LAYER
from echo.passes.patterns.sequence_reverse import SEQUENCE_REVERSE
from echo.passes.patterns.softmax_output import SOFTMAX_OUTPUT
from echo.passes.patterns.weighted_sum import WEIGHTED_SUM

PATTERNS: Mapping[str, Pattern] = {
    pattern.name: pattern
    for pattern in (
        LSTM_LAYER, GRU_LAYER, RNN_LAYER, RNN, LSTM_CELL, GRU_CELL, GRU_RESET, MLP_SCORE, WEIGHTED_SUM,
        ATTENTION, SOFTMAX_OUTPUT, CROSS_ENTROPY,
        LAYER_NORM, SEQUENCE_REVERSE, BIAS_ACT, DROPOUT, RELU,
    )
}  # fmt: skip
LAYERS = frozenset(name for name, pattern in PATTERNS.items() if pattern.is_layer)
MASKS = frozenset(name for name, pattern in PATTERNS.items() if pattern.is_mask)
QUIET = frozenset(name for name, pattern in PATTERNS.items() if pattern.is_quiet)
