"""The seconds of a step of the GPU checks, and what did not fit into them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Iterator, TypeVar

Row = dict[str, Any]
Item = TypeVar("Item")


@dataclass
class Clock:
    """The seconds of a step, from its first question on; ``now`` tells the time."""

    seconds: float
    now: Callable[[], float] = time.monotonic
    left_out: list[str] = field(default_factory=list)
    _started: float | None = None
    _longest: float = 0.0

    def take(self, items: Iterable[Item], name: Callable[[Item], str] = str) -> Iterator[Item]:
        """Items as long as one that takes as much as the longest before it would fit; the others by name."""
        if self._started is None:
            self._started = self.now()
        for item in items:
            begun = self.now()
            if begun - self._started + self._longest > self.seconds or self.seconds <= 0:
                self.left_out.append(name(item))
                continue
            yield item
            self._longest = max(self._longest, self.now() - begun)
