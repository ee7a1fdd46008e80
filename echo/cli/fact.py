"""A fact about the machine, which is one row in the table of ``mxecho doctor``."""

from __future__ import annotations

from dataclasses import dataclass

FINE = "fine"
OFF = "off"  # echo works without it, and saves or checks less
STOPS = "stops"  # echo cannot work


@dataclass(frozen=True)
class Fact:
    """A value that was found, what it means for echo, and a remark on it: the reason of what is off or stops echo."""

    section: str
    name: str
    value: str | int | bool
    remark: str = ""
    state: str = FINE
