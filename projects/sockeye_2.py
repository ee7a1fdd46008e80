"""Sockeye 2.3.24 (Gluon): Transformers, of which one decodes with simple recurrent units in a foreach loop."""

from __future__ import annotations

import functools
from typing import Callable

from projects.sockeye_common import train
from projects.witness import Arrays

PACKAGE = "sockeye"
_SIZES = (
    "--num-layers 1:1 --transformer-model-size 48 --transformer-attention-heads 4 "
    "--transformer-feed-forward-num-hidden 96"
)


def load() -> None:
    """Imports the project: its server of processes comes before mxnet."""
    from sockeye import train as program  # noqa: F401


MODELS: dict[str, Callable[[int], Arrays]] = {
    name: functools.partial(train, f"{_SIZES} {options}")
    for name, options in {
        "transformer": "",
        "transformer_3_layers": "--num-layers 3:3 --weight-tying-type src_trg_softmax --shared-vocab",
        "ssru_transformer": "--decoder ssru_transformer",
    }.items()
}
