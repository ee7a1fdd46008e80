"""The setting of a bind that patterns of fused operators read beside the graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """The variables without gradients, and whether kernels may draw random numbers.

    ``untrained`` are the names of the variables that get no gradient. With ``draws``, kernels draw the random numbers
    that MXNet's Dropout would draw here.
    """

    untrained: frozenset[str] = frozenset()
    draws: bool = False


NO_SETTING = Setting()
