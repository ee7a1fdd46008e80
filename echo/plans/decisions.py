"""The parts of a plan: decisions about feature maps, marks of nodes, near-misses of patterns, and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

HIDDEN = "inside of operators"  # a kind of memory that no planner sees
KEPT = "plain copies of maps"  # what operators that run again keep beside their arrays (`echo.estimators.kept`)
WORKSPACES = "workspaces of fused operators"  # what they draw while they run (`echo.estimators.workspace`)
STASH, RECOMPUTE = "stash", "recompute"


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


NOT_FUSED = "not fused ("  # how notes on near-misses begin; behind "): " they have the reason


@dataclass(frozen=True)
class Missed:
    """A pattern that was nearly found at a node of the user, and why no fused operator takes its place."""

    node: int
    name: str
    pattern: str
    reason: str


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
