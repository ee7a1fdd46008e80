"""DeepSpeech2 (Amodei et al., 2016): two convolutions, five recurrent layers of 1760 units both ways, CTC.

The two directions of a layer are summed, as published. Batch norm stands after the convolutions only. The papers name
frames from 200 to 1600 and no batch: here are 400 frames (four seconds), of which the first convolution makes 200
steps, and 32 utterances of up to 60 characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mxnet as mx

from benchmarks.models import Model
from benchmarks.speech_models import CHARACTERS, FREQUENCIES, _features

_CELLS = {"gru": mx.rnn.GRUCell, "rnn": mx.rnn.RNNCell}


@dataclass(frozen=True)
class Setting:
    """``mode`` of the cells: "gru" or "rnn"."""

    mode: str = "gru"
    layers: int = 5
    hidden: int = 1760
    frames: int = 400
    batch: int = 32
    characters: int = 60


def model(name: str, setting: Setting) -> Model:
    """The training symbol: `data` (batch, 1, frames, frequencies), a spectrogram, and `label`, characters from 1 on."""
    steps = setting.frames // 2
    with mx.name.NameManager():
        x: Sequence[mx.sym.Symbol] = _features(setting.batch, steps)
        for layer in range(setting.layers):
            x = _both_ways(x, setting, layer)
        rows = mx.sym.concat(*[mx.sym.expand_dims(step, axis=0) for step in x], dim=0, name="rows")
        scores = mx.sym.FullyConnected(rows, num_hidden=CHARACTERS, flatten=False, name="scores")
        symbol = mx.sym.make_loss(mx.sym.ctc_loss(scores, mx.sym.var("label")), name="loss")
    shapes = {"data": (setting.batch, 1, setting.frames, FREQUENCIES), "label": (setting.batch, setting.characters)}
    return Model(name, symbol, shapes, limits={"label": CHARACTERS})


def _both_ways(x: Sequence[mx.sym.Symbol], setting: Setting, layer: int) -> list[mx.sym.Symbol]:
    """The sum of both directions in each step."""
    forward, backward = (
        _CELLS[setting.mode](setting.hidden, prefix=f"layer{layer}_{way}_").unroll(
            len(x), inputs=list(x)[::direction], merge_outputs=False
        )[0]
        for way, direction in (("forward", 1), ("backward", -1))
    )
    return [left + right for left, right in zip(forward, reversed(backward))]
