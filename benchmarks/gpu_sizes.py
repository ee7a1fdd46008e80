"""Cases that the GPU checks time: sizes from papers and benchmarks of others, and grids of our own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple


class Recurrent(NamedTuple):
    """A recurrent layer: hidden units, as many inputs; batch; steps; layers of this size side by side."""

    hidden: int
    batch: int
    steps: int
    heads: int = 1

    def __str__(self) -> str:
        heads = f" x {self.heads}" if self.heads > 1 else ""
        return f"H={self.hidden}{heads} B={self.batch} T={self.steps}"


# Baidu's DeepBench (code/kernels/rnn_problems.h, training_set): its LSTM and GRU layers, the smallest first.
DEEPBENCH_LSTM = (
    *(Recurrent(256, batch, 150) for batch in (16, 32, 64)),
    *(Recurrent(hidden, batch, 25) for hidden in (512, 1024) for batch in (16, 32, 64, 128)),
    *(Recurrent(1536, batch, 50) for batch in (8, 16, 32)),
    *(Recurrent(hidden, batch, 25) for hidden in (2048, 4096) for batch in (16, 32, 64, 128)),
)
DEEPBENCH_GRU = (
    Recurrent(512, 32, 1),
    *(Recurrent(hidden, 32, steps) for steps in (187, 375, 750) for hidden in (1536, 2048, 2560, 2816)),
    Recurrent(1024, 32, 1500),
    Recurrent(1024, 64, 1500),
    *(Recurrent(hidden, 32, 1500) for hidden in (1536, 2048, 2560, 2816)),
)
# FlashRNN's sweep over the size of a head (speed_experiments/kernel_speed_benchmark.py): 768 units in all.
FLASHRNN = tuple(
    Recurrent(hidden, 16, 1024, heads) for heads, hidden in ((1, 768), (3, 256), (6, 128), (12, 64), (24, 32), (48, 16))
)


class Scores(NamedTuple):
    """Additive attention: batch, queries, keys, units."""

    batch: int
    queries: int
    keys: int
    hidden: int


class Loss(NamedTuple):
    """A projection to classes and the loss of its softmax: rows, inputs, classes."""

    rows: int
    inputs: int
    classes: int

    def __str__(self) -> str:
        return f"N={self.rows} I={self.inputs} V={self.classes}"


@dataclass(frozen=True)
class Sizes:
    """The timed cases: as large as a GPU's caches ask for, or tiny to try the script out."""

    rows: int = 16384
    wide: int = 1024
    layers: tuple[Recurrent, ...] = tuple(
        Recurrent(hidden, batch, steps)
        for batch, hidden, steps in itertools.product((64, 32, 128, 16, 256), (512, 1024, 256, 650, 1500), (50, 35))
    )
    routes: tuple[Recurrent, ...] = tuple(
        Recurrent(hidden, batch, 50) for hidden, batch in itertools.product((256, 512, 1024), (16, 64, 256))
    )
    repetitions: int = 20
    parts: tuple[Recurrent, ...] = tuple(
        Recurrent(hidden, batch, 50) for batch, hidden in itertools.product((64, 16, 256), (512, 1024, 256))
    )
    attentions: tuple[tuple[int, int, int], ...] = ((512, 64, 64), (512, 256, 64), (64, 1024, 64), (64, 50, 512))
    energy: tuple[Recurrent, ...] = (Recurrent(512, 64, 50),)
    deepbench_lstm: tuple[Recurrent, ...] = DEEPBENCH_LSTM
    deepbench_gru: tuple[Recurrent, ...] = DEEPBENCH_GRU
    flashrnn: tuple[Recurrent, ...] = FLASHRNN
    scores: tuple[Scores, ...] = (Scores(256, 38, 37, 1024),)  # NVIDIA's GNMT, in float16
    losses: tuple[Loss, ...] = tuple(
        Loss(rows, inputs, classes)
        for rows, inputs, classes in itertools.product((4096, 1024, 16384), (512, 1024), (10000, 32000, 128256))
    )
