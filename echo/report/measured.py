"""What a real step of each graph took, as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echo.report.usage import DEVICE, PROCESS, Usage
from echo.system.terminal import megabytes

if TYPE_CHECKING:
    from echo.report.profile import Profile

REST = "not accounted for"
_NOTHING = "-"


def rows(profile: Profile) -> list[tuple[str, list[str]]]:
    """A row for each thing that was watched: its name, and the MB by which it grew, graph by graph.

    The last row, `REST`, is what nothing accounts for, also as a part of what the process, or the device, grew by.
    Without measurements there are no rows.
    """
    usages = list(profile.usages.values())
    names = list(dict.fromkeys(name for usage in usages for name in usage.measured))
    if not names:
        return []
    watched = [(name, [_megabytes(usage.measured.get(name)) for usage in usages]) for name in names]
    return [*watched, (REST, list(map(_rest, usages)))]


def _rest(usage: Usage) -> str:
    grown = usage.measured.get(DEVICE) or usage.measured.get(PROCESS)
    if usage.unaccounted is None or not grown:
        return _megabytes(usage.unaccounted)
    return f"{_megabytes(usage.unaccounted)} ({100 * usage.unaccounted / grown:.1f} %)"


def _megabytes(size: int | None) -> str:
    return _NOTHING if size is None else megabytes(size)
