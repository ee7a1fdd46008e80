"""The cost of a choice of recomputed feature maps, in bytes and seconds, and the protocol of its evaluators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Sequence

import numpy as np
import numpy.typing as npt

from echo.ir.schedule import Splits

Choice = npt.NDArray[np.uint8]  # one number an entry: 1 where gradients read it from a clone


@dataclass(frozen=True)
class Evaluation:
    """Planned bytes under each match range, seconds of recomputation in a step."""

    totals: tuple[int, ...]
    seconds: float

    @property
    def bytes(self) -> int:
        return min(self.totals)

    @property
    def best(self) -> int:
        """The position of the match range with the fewest bytes."""
        return self.totals.index(self.bytes)


class Evaluator(Protocol):
    """Plans the storage of choices on one training graph of ``entries`` entries."""

    entries: int

    def evaluate(
        self, recompute: Choice, match_ranges: Sequence[int], limit: int | None = None, splits: Splits | None = None
    ) -> Evaluation:
        """Plans a choice; ``splits`` says where nodes run again, by default once for all backward nodes.

        With a ``limit`` in bytes only ``bytes`` is meant to be read, exact up to the limit.
        """

    def executed(self, recompute: Choice, splits: Splits | None = None) -> Choice:
        """``executed[i]``: how often forward node i runs again under this choice."""
