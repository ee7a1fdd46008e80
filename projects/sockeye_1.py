"""Sockeye 1.18.106 (Module, unrolled graphs): recurrent, convolutional and Transformer models."""

from __future__ import annotations

import functools
from typing import Callable

from projects.sockeye_common import train
from projects.witness import Arrays

PACKAGE = "sockeye"
_SIZES = "--num-layers 1:1 --num-embed 48"
_DEEP = "--num-layers 3:3 --num-embed 48"
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
    name: functools.partial(train, options)
    for name, options in {
        "rnn_lstm": f"{_SIZES} {_RNN} mlp {_DROPOUT}",
        "rnn_gru": f"{_SIZES} {_RNN} dot --rnn-attention-num-hidden 48 --rnn-cell-type gru",
        "rnn_lnlstm": f"{_SIZES} {_RNN} mlp --rnn-cell-type lnlstm --layer-normalization {_DROPOUT}",
        "rnn_lnglstm": f"{_SIZES} {_RNN} bilinear --rnn-cell-type lnglstm",
        "rnn_residual": f"{_DEEP} {_RNN} mlp --rnn-residual-connections",
        "rnn_residual_lnlstm": f"{_DEEP} {_RNN} mlp --rnn-residual-connections --rnn-cell-type lnlstm "
        "--layer-normalization",
        "rnn_dot": f"{_SIZES} {_RNN} dot --rnn-attention-num-hidden 48",
        "rnn_coverage": f"{_SIZES} {_RNN} coverage --rnn-attention-coverage-type gru",
        "rnn_multihead": f"{_SIZES} {_RNN} mhdot --rnn-attention-mhdot-heads 4",
        "cnn": f"{_SIZES} {_CNN} --cnn-hidden-dropout 0.1 --embed-dropout 0.1",
        "transformer": f"{_SIZES} {_TRANSFORMER}",
        "transformer_tied": f"{_SIZES} {_TRANSFORMER} --weight-tying --weight-tying-type trg_softmax",
    }.items()
}
