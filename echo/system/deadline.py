"""The time at which planning has to end: a safety net, so that no bind waits longer than its user wants.

Where planning ends before two thirds of it are over, nothing depends on the clock: plans are the same in every run, and
on every worker.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


class OutOfTime(Exception):
    """A search has to end now; the best that it has found so far is taken."""


@dataclass(frozen=True)
class Deadline:
    """A moment by the process's clock; ``seconds`` is the time that the user gave for all of planning.

    ``length`` is the time that there was until it at first: less than ``seconds`` where it ends one part of planning.
    """

    seconds: float
    at: float
    length: float

    @staticmethod
    def after(seconds: float | None) -> Deadline:
        """Returns the deadline ``seconds`` from now, or one that never passes for None."""
        return NEVER if seconds is None else Deadline(seconds, time.monotonic() + seconds, seconds)

    @property
    def left(self) -> float:
        """Seconds until then, 0 where it is over, infinite where there is none."""
        return max(0.0, self.at - time.monotonic()) if self.at < math.inf else math.inf

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return not self.left

    def with_room(self) -> Deadline:
        """An earlier deadline, so that what follows may take as long as all so far, at most a third of the whole."""
        if self.at == math.inf:
            return self
        so_far = self.length - self.left
        return Deadline(self.seconds, self.at - min(so_far, self.length / 3), self.length)

    def rest(self) -> Deadline:
        """The same moment, for what begins now: it has all the time until then."""
        return Deadline(self.seconds, self.at, self.left)

    def part(self, count: int) -> Deadline:
        """An earlier deadline, which leaves as much time to each of ``count`` things that are to be done until then."""
        left = self.left / count
        return self if count == 1 or self.at == math.inf else Deadline(self.seconds, self.at - self.left + left, left)


NEVER = Deadline(math.inf, math.inf, math.inf)
