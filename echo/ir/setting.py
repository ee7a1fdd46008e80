"""The setting of a bind that patterns of fused operators read beside the graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """The variables without gradients, and what MXNet's operators draw.

    ``untrained`` are the names of the variables that get no gradient. With ``draws``, kernels draw the random numbers
    that MXNet's Dropout would draw here. With ``onednn_rnn``, oneDNN runs its RNN operator of float32: that has no
    dropout between its layers, whatever its ``p``.
    """

    untrained: frozenset[str] = frozenset()
    draws: bool = False
    onednn_rnn: bool = False


NO_SETTING = Setting()
