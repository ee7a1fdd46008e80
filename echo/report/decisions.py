"""Decisions of a plan in groups: alike maps of alike layers with one reason are one row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable

from echo.plans.decisions import Decision

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Group:
    """Decisions on ``count`` maps whose names and reasons differ in numbers; ``bytes`` and ``seconds`` are sums."""

    name: str
    op: str
    action: str
    reason: str
    count: int
    bytes: int
    seconds: float


def groups(decisions: Iterable[Decision]) -> list[Group]:
    """The decisions as groups, the largest first; of a group of one, the name and the reason are its own."""
    members_of: dict[tuple[str, str, str, str], list[Decision]] = {}
    for decision in decisions:
        key = _starred(decision.name), decision.op, decision.action, _starred(decision.reason)
        members_of.setdefault(key, []).append(decision)
    rows = []
    for (name, op, action, _), members in members_of.items():
        if len({member.name for member in members}) == 1:
            name = members[0].name
        reason = _joined([member.reason for member in members])
        size, seconds = sum(member.bytes for member in members), sum(member.seconds for member in members)
        rows.append(Group(name, op, action, reason, len(members), size, seconds))
    return sorted(rows, key=lambda group: -group.bytes)


def _starred(text: str) -> str:
    return _NUMBERS.sub("*", text)


def _joined(reasons: list[str]) -> str:
    """Reasons that differ in numbers as one: counts as "1 to 3", numbers in names as "*"."""
    words, *_ = (_NUMBERS.split(reason) for reason in reasons)
    joined = words[0]
    for before, numbers, after in zip(words, zip(*map(_NUMBERS.findall, reasons)), words[1:]):
        values = sorted({int(number) for number in numbers})
        if len(values) == 1:
            joined += numbers[0]
        elif before.endswith(" ") or not before:
            joined += f"{values[0]} to {values[-1]}"
        else:
            joined += "*"
        joined += after
    return joined
