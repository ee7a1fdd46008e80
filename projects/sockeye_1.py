"""Sockeye 1.18.106 (Module, unrolled graphs): recurrent, convolutional and Transformer models."""

from __future__ import annotations

import functools
from typing import Callable

from projects.sockeye_common import train
from projects.witness import Arrays

PACKAGE = "sockeye"
_SIZES = "--num-layers 1:1 --num-embed 48"
_RNN = "--encoder rnn --decoder rnn --rnn-num-hidden 48 --rnn-attention-type"
_CNN = "--encoder cnn --decoder cnn --cnn-num-hidden 48 --cnn-kernel-width 3:3"
_TRANSFORMER = (
    "--encoder transformer --decoder transformer --transformer-model-size 48 --transformer-attention-heads 4 "
    "--transformer-feed-forward-num-hidden 96"
)
_DROPOUT = "--embed-dropout 0.1 --rnn-dropout-inputs 0.1 --rnn-dropout-states 0.1"


def load() -> None:
    """Imports the project: its server of processes comes before mxnet."""
    from sockeye import train as program  # noqa: F401


MODELS: dict[str, Callable[[int], Arrays]] = {
    "rnn_lstm": functools.partial(train, f"{_SIZES} {_RNN} mlp {_DROPOUT}"),
    "rnn_gru": functools.partial(train, f"{_SIZES} {_RNN} dot --rnn-attention-num-hidden 48 --rnn-cell-type gru"),
    "rnn_lnlstm": functools.partial(train, f"{_SIZES} {_RNN} mlp --rnn-cell-type lnlstm --layer-normalization {_DROPOUT}"),
    "rnn_lnglstm": functools.partial(train, f"{_SIZES} {_RNN} bilinear --rnn-cell-type lnglstm"),
    "rnn_residual": functools.partial(train, f"--num-layers 3:3 --num-embed 48 {_RNN} mlp --rnn-residual-connections"),
    "rnn_residual_lnlstm": functools.partial(train, 
        f"--num-layers 3:3 --num-embed 48 {_RNN} mlp --rnn-residual-connections --rnn-cell-type lnlstm "
        "--layer-normalization"),  # fmt: skip
    "rnn_dot": functools.partial(train, f"{_SIZES} {_RNN} dot --rnn-attention-num-hidden 48"),
    "rnn_coverage": functools.partial(train, f"{_SIZES} {_RNN} coverage --rnn-attention-coverage-type gru"),
    "rnn_multihead": functools.partial(train, f"{_SIZES} {_RNN} mhdot --rnn-attention-mhdot-heads 4"),
    "cnn": functools.partial(train, f"{_SIZES} {_CNN} --cnn-hidden-dropout 0.1 --embed-dropout 0.1"),
    "transformer": functools.partial(train, f"{_SIZES} {_TRANSFORMER}"),
    "transformer_tied": functools.partial(train, f"{_SIZES} {_TRANSFORMER} --weight-tying --weight-tying-type trg_softmax"),
}
