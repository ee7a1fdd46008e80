"""Decisions of a plan in groups: alike maps of alike layers with one reason are one row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable

from echo.plans.decisions import Decision

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Group:
    """Decisions on ``count`` maps whose names differ in numbers alone; ``bytes`` and ``seconds`` are their sums."""

    name: str
    op: str
    action: str
    reason: str
    count: int
    bytes: int
    seconds: float


def groups(decisions: Iterable[Decision]) -> list[Group]:
    """The decisions as groups, the largest first; of a group of one, the name and the reason are its own."""
    found: dict[tuple[str, str, str, str], list[Decision]] = {}
    for each in decisions:
        found.setdefault((_starred(each.name), each.op, each.action, _starred(each.reason)), []).append(each)
    made = []
    for (name, op, action, reason), members in found.items():
        if len({member.name for member in members}) == 1:
            name = members[0].name
        if len({member.reason for member in members}) == 1:
            reason = members[0].reason
        size, seconds = sum(each.bytes for each in members), sum(each.seconds for each in members)
        made.append(Group(name, op, action, reason, len(members), size, seconds))
    return sorted(made, key=lambda group: -group.bytes)


def _starred(text: str) -> str:
    return _NUMBERS.sub("*", text)
