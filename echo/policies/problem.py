"""What a policy is given, and what it returns: data in, decisions out.

A policy chooses which candidate nodes to recompute. It may ask one thing: the exact bytes and seconds of a choice
(`Problem.evaluate`). It never sees a symbol and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Mapping, Protocol, Sequence

import numpy as np
import numpy.typing as npt

from echo.estimators.overhead import Overhead
from echo.graph import Entry
from echo.passes.partition import Segments
from echo.training_graph import TrainingGraph

Choice = npt.NDArray[np.uint8]  # one number an entry: 1 where gradients read it from a clone


class Evaluation(Protocol):
    """What a choice costs: planned bytes under each match range, and seconds of recomputation."""

    @property
    def totals(self) -> tuple[int, ...]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def bytes(self) -> int: ...


class Evaluator(Protocol):
    """Plans the storage of a choice exactly (`echo.estimators.planner`)."""

    entries: int

    def evaluate(self, recompute: Choice, match_ranges: Sequence[int]) -> Evaluation: ...
    def executed(self, recompute: Choice) -> Choice: ...


@dataclass(frozen=True)
class Problem:
    """One training graph, what may be recomputed in it, and the limits.

    ``candidates`` maps each node that the policy may choose to its recomputable entries, ``segments`` groups them
    between compute-heavy operators; ``forced`` are entries that
    the user insists on. ``max_seconds`` bounds the recomputation in a step, ``max_bytes`` the planned memory; with
    ``max_bytes`` the fastest choice that fits is wanted, without it the smallest. ``match_ranges[0]`` is the one that
    MXNet uses by itself. ``effort`` bounds the work of a search, in visited nodes.
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
    progress: Callable[[str], None] = field(default=lambda _: None)

    def choice(self, nodes: Sequence[int] = ()) -> Choice:
        """The choice that recomputes these candidates and what is forced."""
        choice = np.zeros(self.evaluator.entries, np.uint8)
        for entry in self.forced:
            choice[self.training.entry_id(entry)] = 1
        for node in nodes:
            choice[self.entry_ids(node)] = 1
        return choice

    def entry_ids(self, node: int) -> list[int]:
        """The numbers of a candidate's recomputable entries."""
        return [self.training.entry_id(entry) for entry in self.candidates[node]]

    def evaluate(self, choice: Choice, match_ranges: Sequence[int] | None = None) -> Evaluation:
        """Exact bytes and seconds of a choice."""
        return self.evaluator.evaluate(choice, self.match_ranges if match_ranges is None else match_ranges)

    def rank(self, evaluation: Evaluation) -> tuple[float, float, float]:
        """Smaller is better: first the limits, then what is wanted, then what is nice to have."""
        late = 0.0 if self.max_seconds is None else max(0.0, evaluation.seconds - self.max_seconds)
        if self.max_bytes is None:
            return (late, float(evaluation.bytes), evaluation.seconds)
        over = float(max(0, evaluation.bytes - self.max_bytes))
        return (over, late, evaluation.seconds)


class Policy(Protocol):
    """A strategy: returns the choice that it prefers."""

    name: str

    def choose(self, problem: Problem) -> Choice: ...
