"""The interface of policies: a problem in, a schedule out.

A policy chooses which candidate nodes to recompute, and where (`echo.ir.schedule.Splits`). It may ask for the exact
bytes and seconds of a choice (`Problem.value`). It never sees a symbol and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Iterable, Mapping, Protocol, Sequence

import numpy as np

from echo.estimators.overhead import Overhead
from echo.estimators.storage_planner import Choice, Evaluation, Evaluator
from echo.ir.graph import Entry
from echo.ir.schedule import Splits, once
from echo.ir.training_graph import ASSIGNED, EXECUTOR, TrainingGraph
from echo.policies.segments import Segments
from echo.policies.warm_start import WarmStart
from echo.system.process import NEVER, Deadline


@dataclass(frozen=True)
class Problem:
    """One training graph, the candidates for recomputation, and the limits.

    ``candidates`` maps each node that the policy may choose to its recomputable entries, ``segments`` groups them
    between compute-heavy operators; ``forced`` are entries that the user insists on. ``max_seconds`` bounds the
    recomputation in a step, ``max_bytes`` the planned memory: the policy aims at the fastest choice within
    ``max_bytes``, without it at the smallest. ``match_ranges[0]`` is the one that MXNet uses by itself; where
    ``assigns``, echo's own storage assignment is another way to plan storage (`ASSIGNED`), with ``assigned_only`` the
    only one. ``effort`` bounds the work of a search, in visited nodes; a ``warm_start`` shortens it. With ``once``, a
    node may run again once, for all backward nodes: MXNet's own attributes cannot say more. Searches end at the
    ``deadline``.
    """

    training: TrainingGraph
    overhead: Overhead
    evaluator: Evaluator
    candidates: Mapping[int, tuple[Entry, ...]]
    segments: Segments
    forced: frozenset[Entry]
    match_ranges: tuple[int, ...]
    max_seconds: float | None = None
    max_bytes: int | None = None
    effort: int = 10_000_000
    warm_start: WarmStart | None = None
    assigns: bool = False
    assigned_only: bool = False
    once: bool = False
    deadline: Deadline = NEVER
    progress: Callable[[str], None] = field(default=lambda _: None)

    @property
    def all_ranges(self) -> tuple[int, ...]:
        """The match ranges by which storage can be planned, with `ASSIGNED` for echo's own assignment."""
        if self.assigned_only:
            return (ASSIGNED,)
        return (*self.match_ranges, ASSIGNED) if self.assigns else self.match_ranges

    def choice(self, nodes: Sequence[int] = ()) -> Choice:
        """The choice that recomputes these candidates and the forced entries."""
        choice = np.zeros(self.evaluator.entries, np.uint8)
        for entry in self.forced:
            choice[self.training.entry_id(entry)] = 1
        for node in nodes:
            choice[self.entry_ids(node)] = 1
        return choice

    def entry_ids(self, node: int) -> list[int]:
        """The numbers of a candidate's recomputable entries."""
        return [self.training.entry_id(entry) for entry in self.candidates[node]]

    @property
    def may_split(self) -> bool:
        """Whether nodes may run again several times, anywhere; not in a CachedOp, which plans each pass by itself."""
        return not self.once and self.training.runner == EXECUTOR

    def splits(self, nodes: Iterable[int]) -> Splits:
        """Returns the schedule in which each of these nodes runs again once."""
        return once(self.training, nodes)

    def chosen(self, choice: Choice) -> Splits:
        """The candidates that a choice recomputes, once each."""
        return self.splits(node for node in self.candidates if choice[self.entry_ids(node)[0]])

    def value(self, splits: Splits) -> Evaluation:
        """Exact bytes and seconds of a schedule, under the best of `all_ranges`."""
        return self.evaluator.evaluate(self.choice(list(splits)), self.all_ranges, None, splits)

    def evaluate(
        self, choice: Choice, match_ranges: Sequence[int] | None = None, limit: int | None = None
    ) -> Evaluation:
        """Exact bytes and seconds of a choice; bytes above a ``limit`` may come out smaller, but above it."""
        return self.evaluator.evaluate(choice, self.match_ranges if match_ranges is None else match_ranges, limit)

    def keeps(self, evaluation: Evaluation) -> bool:
        """Whether a choice is within all limits."""
        return not any(self.rank(evaluation)[: 1 if self.max_bytes is None else 2])

    def rank(self, evaluation: Evaluation) -> tuple[float, float, float]:
        """Smaller is better: first the excess over the limits, then the objective, then what breaks ties."""
        late = 0.0 if self.max_seconds is None else max(0.0, evaluation.seconds - self.max_seconds)
        if self.max_bytes is None:
            return (late, float(evaluation.bytes), evaluation.seconds)
        over = float(max(0, evaluation.bytes - self.max_bytes))
        return (over, late, evaluation.seconds)


class Policy(Protocol):
    """A strategy: returns the candidates that run again, and where."""

    @property
    def name(self) -> str: ...
    def choose(self, problem: Problem) -> Splits: ...
