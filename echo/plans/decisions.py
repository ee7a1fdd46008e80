"""The parts of a plan: decisions about feature maps, marks of nodes, notes, near-misses of patterns, and bytes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import Iterable, Mapping

HIDDEN = "inside of operators"  # a kind of memory that no planner sees
KEPT = "plain copies of maps"  # what operators that run again keep beside their arrays (`echo.estimators.inplace`)
WORKSPACES = "workspaces of fused operators"  # what they draw while they run (`echo.estimators.footprint`)
STASH, RECOMPUTE = "stash", "recompute"
_MOST_REASONS = 3


@dataclass(frozen=True)
class Decision:
    """One feature map is kept or recomputed: output ``output`` of the node numbered ``node`` in the symbol's graph.

    ``bytes`` is its size; ``seconds`` is the time of computing it once more.
    """

    node: int
    name: str
    op: str
    output: int
    action: str
    bytes: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class Mark:
    """The attributes ``attrs`` that apply the plan at the user's node ``node``, an operator ``op``."""

    node: int
    op: str
    attrs: Mapping[str, str]


class NoteKind(Enum):
    """The kinds of notes: on the plan, on a way to plan that failed and was left out, on planning that ended early."""

    REMARK = "remark"
    FAILED = "failed"
    LATE = "late"


@dataclass(frozen=True)
class Note:
    """A text about the plan for the user."""

    text: str
    kind: NoteKind = NoteKind.REMARK

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Missed:
    """A pattern that was nearly found at a node of the user, and why no fused operator takes its place.

    A ``quiet`` one says nothing new (most networks have some), or nothing that matters: the arrays are too small. It is
    named only to a user who asks about its node.
    """

    node: int
    name: str
    pattern: str
    reason: str
    quiet: bool = False


def near_misses(missed: Iterable[Missed]) -> list[list[Missed]]:
    """The near-misses that the user is told of, those with one reason together: of the three most frequent reasons."""
    groups: dict[str, list[Missed]] = defaultdict(list)
    for near_miss in missed:
        if not near_miss.quiet:
            groups[near_miss.reason].append(near_miss)
    return sorted(groups.values(), key=len, reverse=True)[:_MOST_REASONS]


@dataclass(frozen=True)
class Memory:
    """Bytes before or after: ``planned`` by MXNet's memory planner, ``live_peak`` of entries alive at once.

    ``static`` is there all the time (arguments, their gradients, auxiliary states), by kind; ``at_peak`` splits the
    live peak by kind; ``layers`` are the feature maps stashed for the backward pass.
    """

    planned: int
    live_peak: int
    static: Mapping[str, int]
    at_peak: Mapping[str, int]
    layers: Mapping[str, int]

    @property
    def kept(self) -> int:
        """The bytes that operators that run again keep beside planned memory (`KEPT`)."""
        return self.static.get(KEPT, 0)

    @property
    def chosen(self) -> int:
        """The bytes that depend on the plan: planned memory, and what operators keep beside it."""
        return self.planned + self.kept

    @property
    def workspaces(self) -> int:
        """The bytes that fused operators draw while they run (`WORKSPACES`)."""
        return self.static.get(WORKSPACES, 0)

    @property
    def total(self) -> int:
        """The bytes that the executor holds: planned and static memory."""
        return self.planned + sum(self.static.values())
