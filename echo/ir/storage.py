"""How memory is handed out: echo's own storage methods, and the pool that MXNet keeps for a device."""

from __future__ import annotations

from dataclasses import dataclass

# By numbers in the place of a match range of MXNet's memory planner.
ASSIGNED = -1  # echo's own assignment (`echo.estimators.assignment`)
PEAK = -2  # the most bytes alive at once, which no assignment goes below: never applied, but quick to search by


@dataclass(frozen=True)
class MemoryPool:
    """A pool that keeps freed blocks, and hands each of them out again only for requests of the same size.

    Requests get a multiple of ``page`` or, where ``powers`` is set, a power of two that is no smaller; what is more
    than ``coarse`` bytes then becomes a multiple of that. A block is back in the pool ``late`` nodes behind its last
    reader.
    """

    page: int
    coarse: int
    powers: bool
    late: int = 0

    def handed_out(self, size: int) -> int:
        """The bytes of the block that a request of ``size`` bytes gets."""
        if not self.powers:
            size = _multiple(max(size, 1), self.page)
        if size > self.coarse:
            return _multiple(size, self.coarse)
        return max(self.page, 1 << (size - 1).bit_length() if size else 1) if self.powers else size


def _multiple(size: int, unit: int) -> int:
    return -(-size // unit) * unit
