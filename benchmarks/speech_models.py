"""Speech models as DeepSpeech2 (Amodei et al. 2016): two convolutions, three recurrent layers both ways, CTC.

The layers are unrolled cells, as in MXNet's example/speech_recognition (mx.rnn) and as Gluon's models have them.
"""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx

from benchmarks.models import Model

FREQUENCIES, CHANNELS, CHARACTERS, LABELS = 161, 32, 29, 30
_LAYERS = 3
_MX_CELLS = {"gru": mx.rnn.GRUCell, "lstm": mx.rnn.LSTMCell}
_GLUON_CELLS = {"gru": mx.gluon.rnn.GRUCell, "lstm": mx.gluon.rnn.LSTMCell}


def deepspeech(mode: str, gluon: bool = False, frames: int = 120, batch: int = 16, hidden: int = 512) -> Model:
    """A model whose cells are of this mode, "gru" or "lstm", and have half as many steps as there are frames.

    Inputs: `data` (batch, 1, frames, frequencies), a spectrogram, and `label` (batch, labels), characters from 1 on.
    """
    steps = frames // 2
    with mx.name.NameManager():
        x = _features(batch, steps)
        for layer in range(_LAYERS):
            x = (_gluon_layer if gluon else _mx_layer)(mode, layer, hidden, steps, x)
        rows = mx.sym.Concat(*[mx.sym.expand_dims(step, axis=0) for step in x], dim=0)
        scores = mx.sym.FullyConnected(rows, num_hidden=CHARACTERS, flatten=False, name="scores")
        loss = mx.sym.make_loss(mx.sym.ctc_loss(scores, mx.sym.var("label")), name="loss")
    name = f"DeepSpeech2, {mode.upper()}" + (" of Gluon" if gluon else "")
    shapes = {"data": (batch, 1, frames, FREQUENCIES), "label": (batch, LABELS)}
    return Model(name, loss, shapes, limits={"label": CHARACTERS})


def _features(batch: int, steps: int) -> Sequence[mx.sym.Symbol]:
    """Two convolutions with batch norm and relu; for each frame (batch, channels * frequencies)."""
    x = mx.sym.var("data")
    for number, (kernel, stride) in enumerate((((11, 41), (2, 2)), ((11, 21), (1, 2)))):
        pad = tuple(size // 2 for size in kernel)
        x = mx.sym.Convolution(x, kernel=kernel, stride=stride, pad=pad, num_filter=CHANNELS, no_bias=True,
                               name=f"conv{number}")  # fmt: skip
        x = mx.sym.BatchNorm(x, fix_gamma=False, name=f"norm{number}")
        x = mx.sym.Activation(x, act_type="relu", name=f"relu{number}")
    x = mx.sym.transpose(x, axes=(0, 2, 1, 3))
    x = mx.sym.reshape(x, shape=(batch, steps, -1))
    return list(mx.sym.split(x, num_outputs=steps, axis=1, squeeze_axis=True, name="frames"))


def _mx_layer(mode: str, layer: int, hidden: int, steps: int, x: Sequence[mx.sym.Symbol]) -> Any:
    """Both directions, and their concatenation in each step, as `arch_deepspeech.py` unrolls them."""
    cells = [_MX_CELLS[mode](hidden, prefix=f"l{layer}_{way}_") for way in ("forward", "backward")]
    both = mx.rnn.BidirectionalCell(*cells, output_prefix=f"l{layer}_")
    return both.unroll(steps, list(x), merge_outputs=False)[0]


def _gluon_layer(mode: str, layer: int, hidden: int, steps: int, x: Sequence[mx.sym.Symbol]) -> Any:
    cells = [_GLUON_CELLS[mode](hidden, prefix=f"l{layer}_{way}_") for way in ("forward", "backward")]
    both = mx.gluon.rnn.BidirectionalCell(*cells)
    states = [mx.sym.zeros(shape=(1, hidden)) for _ in both.state_info()]
    states = [mx.sym.broadcast_add(state, mx.sym.zeros_like(mx.sym.slice_axis(x[0], axis=1, begin=0, end=1)))
              for state in states]  # fmt: skip
    return both.unroll(steps, list(x), begin_state=states, layout="TNC", merge_outputs=False)[0]
