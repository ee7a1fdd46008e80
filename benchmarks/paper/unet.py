"""U-Net (Ronneberger et al., 2015): four halvings from 64 channels on, skipped to as many doublings."""

from __future__ import annotations

import mxnet as mx

from benchmarks.models import Model

_CHANNELS = (64, 128, 256, 512, 1024)


def model(batch: int = 8, side: int = 256, classes: int = 2) -> Model:
    """The training symbol: `data` (batch, 3, side, side), `softmax_label` (batch, side, side).

    Convolutions are padded, so that the output has the size of the input, and have batch norms, as in later versions.
    """
    with mx.name.NameManager():
        x, skipped = mx.sym.var("data"), []
        for level, channels in enumerate(_CHANNELS):
            if level:
                skipped.append(x)
                x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"pool{level}")
            x = _twice(x, channels, f"down{level}")
        for level, channels in reversed(list(enumerate(_CHANNELS[:-1]))):
            x = mx.sym.Deconvolution(x, num_filter=channels, kernel=(2, 2), stride=(2, 2), name=f"up{level}_wide")
            x = _twice(mx.sym.concat(skipped[level], x, dim=1, name=f"up{level}_both"), channels, f"up{level}")
        scores = mx.sym.Convolution(x, num_filter=classes, kernel=(1, 1), name="scores")
        symbol = mx.sym.SoftmaxOutput(scores, mx.sym.var("softmax_label"), multi_output=True, name="softmax")
    shapes = {"data": (batch, 3, side, side), "softmax_label": (batch, side, side)}
    return Model("unet", symbol, shapes, limits={"softmax_label": classes})


def _twice(x: mx.sym.Symbol, channels: int, name: str) -> mx.sym.Symbol:
    for number in range(2):
        x = mx.sym.Convolution(x, num_filter=channels, kernel=(3, 3), pad=(1, 1), no_bias=True, name=f"{name}_{number}")
        x = mx.sym.BatchNorm(x, fix_gamma=False, name=f"{name}_{number}_norm")
        x = mx.sym.Activation(x, act_type="relu", name=f"{name}_{number}_relu")
    return x
