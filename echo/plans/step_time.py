"""The seconds of a training step, as a plan predicts them."""

from __future__ import annotations

from typing import NamedTuple


class StepTime(NamedTuple):
    """Predicted seconds of a step: ``before``, of the user's own graph, and ``after``, of the one that is bound.

    Both are sums of seconds of single operators on the user's device, measured where that is possible.
    """

    before: float
    after: float

    @property
    def ratio(self) -> float:
        """``after`` as a multiple of ``before``."""
        return self.after / self.before if self.before else 1.0

    @property
    def change(self) -> str:
        """The change, as in "-71.4 %"."""
        return f"{100 * (self.ratio - 1):+.1f} %"
