"""What each kernel computes, in NumPy and float64: the specification, and the oracle of the kernels' tests.

NAME takes the inputs of NAME in ``include/echo_kernels.h`` in that order, and its parameters by name; it returns the
outputs as a tuple. NAME_grad takes the gradients of the outputs, the inputs and the outputs, and returns the gradients
of the inputs. None stands for an absent tensor; a gradient that is None counts as zeros. Gradients are derived by hand.
"""

from __future__ import annotations

from echo.kernels.reference.arrays import sigmoid
from echo.kernels.reference.cells import (
    gru_cell,
    gru_cell_grad,
    lstm_cell,
    lstm_cell_grad,
    lstm_layer,
    lstm_layer_grad,
    lstm_norm_cell,
    lstm_norm_cell_grad,
)
from echo.kernels.reference.masks import (
    apply_mask,
    apply_mask_grad,
    dropout,
    dropout_grad,
    pack_mask,
    pack_mask_grad,
    philox,
    relu,
    relu_grad,
)
from echo.kernels.reference.rows import (
    ACTIVATIONS,
    bias_act,
    bias_act_grad,
    layer_norm,
    layer_norm_grad,
    sequence_reverse,
    sequence_reverse_grad,
    softmax_output,
    softmax_output_grad,
)
from echo.kernels.reference.scores import (
    attention,
    attention_grad,
    mlp_score,
    mlp_score_grad,
    weighted_sum,
    weighted_sum_grad,
)

__all__ = [
    "ACTIVATIONS",
    "apply_mask",
    "apply_mask_grad",
    "attention",
    "attention_grad",
    "bias_act",
    "bias_act_grad",
    "dropout",
    "dropout_grad",
    "gru_cell",
    "gru_cell_grad",
    "layer_norm",
    "layer_norm_grad",
    "lstm_cell",
    "lstm_cell_grad",
    "lstm_layer",
    "lstm_layer_grad",
    "lstm_norm_cell",
    "lstm_norm_cell_grad",
    "mlp_score",
    "mlp_score_grad",
    "pack_mask",
    "pack_mask_grad",
    "philox",
    "relu",
    "relu_grad",
    "sequence_reverse",
    "sequence_reverse_grad",
    "sigmoid",
    "softmax_output",
    "softmax_output_grad",
    "weighted_sum",
    "weighted_sum_grad",
]
