"""What patterns of fused operators have to know beyond a graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """Where a graph runs, and what is asked of it.

    ``untrained`` are the names of the variables whose gradients nobody asks for. ``draws``: kernels draw the random
    numbers that MXNet's Dropout would draw here.
    """

    untrained: frozenset[str] = frozenset()
    draws: bool = False


NO_SETTING = Setting()
