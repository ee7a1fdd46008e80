"""The problem that a policy solves: candidates in segments, limits, where it may start, and the time that it has."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import AbstractSet, Callable, Container, Iterable, Mapping, Protocol, Sequence

import numpy as np

from echo.estimators.cost_model import CostModel
from echo.estimators.storage_planner import Evaluation, Evaluator, RecomputeMask
from echo.ir.graph import Entry
from echo.ir.schedule import RecomputeSchedule, once
from echo.ir.training_graph import Runner, StorageStrategy, TrainingGraph
from echo.policies.equivalence_classes import roles
from echo.system.process import NEVER, Deadline, DeadlineExceeded

# Segments: groups of forward nodes between the compute-heavy operators (Echo, ISCA'20, section 4).


@dataclass(frozen=True)
class CandidateSegment:
    """Node numbers in execution order."""

    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Segments:
    """All segments of a training graph, in the order of their first nodes."""

    segments: tuple[CandidateSegment, ...]


def partition(training: TrainingGraph, candidates: Mapping[int, tuple[Entry, ...]]) -> Segments:
    """The connected groups of candidate nodes, by union and find."""
    parent = dict.fromkeys(candidates, -1)  # a node nearer to the first of its group; -1 for the first itself

    def root_of(number: int) -> int:
        root = number
        while parent[root] >= 0:
            root = parent[root]
        while parent[number] >= 0:  # path compression
            parent[number], number = root, parent[number]
        return root

    numbers = sorted(candidates)
    for number in numbers:
        for entry in training.nodes[number].inputs:
            if entry.node in parent:
                read_root, reader_root = root_of(entry.node), root_of(number)
                if read_root != reader_root:
                    parent[max(read_root, reader_root)] = min(read_root, reader_root)
    groups: dict[int, list[int]] = {}
    for number in numbers:
        groups.setdefault(root_of(number), []).append(number)
    return Segments(tuple(CandidateSegment(tuple(group)) for group in groups.values()))


# Starts a search from the choice for another graph of the same model: twenty buckets do not cost twenty searches.

_ROLE_ROUNDS = (3, 2, 1, 0)
# The least part of the candidates whose roles the other graph has: short lengths of one model share a third of their
# roles, graphs with and without fused operators none.
_KNOWN = 0.2


@dataclass(frozen=True)
class WarmStart:
    """The choice for a graph of the same model with another length of its sequences, or another batch size.

    ``recompute`` says for each role (`echo.policies.equivalence_classes.roles`), finest first, whether most of its
    nodes were recomputed. ``schedule`` is the whole schedule, for a graph with the same ``structure``, as another batch
    size has. ``is_known``: the graph is the other one with a few operators replaced, whatever their neighbours' roles
    say. ``heavy``: compute-heavy operators were offered, too. ``step_ratio`` is the time of a step of the original
    graph, as a multiple of a step of the planned one without recomputation.
    """

    recompute: tuple[Mapping[int, bool], ...]
    schedule: RecomputeSchedule = field(default_factory=dict)
    structure: int = 0
    is_known: bool = False
    heavy: bool = False
    step_ratio: float = 1.0

    @staticmethod
    def of(
        training: TrainingGraph,
        nodes: Iterable[int],
        chosen: AbstractSet[int],
        schedule: RecomputeSchedule | None = None,
    ) -> WarmStart:
        """The warm start that the ``chosen`` among these nodes give, and the schedule in which they are recomputed."""
        numbers = list(nodes)
        levels = []
        for colours in roles(training, _ROLE_ROUNDS):
            votes: dict[int, int] = {}
            for number in numbers:
                role = colours[number]
                votes[role] = votes.get(role, 0) + (1 if number in chosen else -1)
            levels.append({role: count >= 0 for role, count in votes.items()})
        return (
            WarmStart(tuple(levels)) if schedule is None else WarmStart(tuple(levels), schedule, _structure(training))
        )

    def by_roles(self) -> WarmStart:
        """This warm start without its schedule, as it can be read from the marks of a plan."""
        return replace(self, schedule={}, structure=0, is_known=False)

    def schedule_for(self, training: TrainingGraph, candidates: Container[int]) -> RecomputeSchedule | None:
        """The schedule of the other graph, where this one differs from it in sizes alone; else None."""
        if not self.structure or self.structure != _structure(training):
            return None
        return self.schedule if all(node in candidates for node in self.schedule) else None

    def fits(self, training: TrainingGraph, candidates: Iterable[int]) -> bool:
        """Whether enough candidates have a role that the other graph has; else it is another model."""
        if self.is_known:
            return True
        (finest,) = roles(training, _ROLE_ROUNDS[:1])
        has_seen_role = [finest[number] in self.recompute[0] for number in candidates]
        return sum(has_seen_role) >= _KNOWN * len(has_seen_role)

    def nodes(self, training: TrainingGraph, candidates: Iterable[int]) -> list[int]:
        """The candidates whose role was recomputed in the other graph."""
        numbers = list(candidates)
        is_recomputed: dict[int, bool] = {}
        for colours, level in zip(roles(training, _ROLE_ROUNDS), self.recompute):
            left = [number for number in numbers if number not in is_recomputed]
            is_recomputed.update({number: level[colours[number]] for number in left if colours[number] in level})
        return [number for number in numbers if is_recomputed.get(number)]


def _structure(training: TrainingGraph) -> int:
    """A number that is equal, in one process, for graphs of the same operators with the same inputs."""
    return hash(tuple([(node.op, node.inputs, node.control_deps) for node in training.nodes]))


# The interface of policies: a problem in, a schedule out.
#
# A policy chooses which candidate nodes to recompute, and where (`echo.ir.schedule.RecomputeSchedule`). It may ask for
# the exact bytes and seconds of a choice (`Problem.value`). It never sees a symbol and changes nothing.


@dataclass(frozen=True)
class Problem:
    """One training graph, the candidates for recomputation, and the limits.

    ``candidates`` maps each node that the policy may choose to its recomputable entries, ``segments`` groups them
    between compute-heavy operators; ``must_recompute`` are entries that the user insists on. ``max_seconds`` bounds the
    recomputation in a step, ``max_bytes`` the planned memory: the policy aims at the fastest choice within
    ``max_bytes``, without it at the smallest. ``match_ranges[0]`` is the one that MXNet uses by itself; where
    ``assigns``, echo's own storage assignment is another way to plan storage (`StorageStrategy.ASSIGNED`), with
    ``assigned_only`` the only one. ``effort`` bounds the work of a search, in visited nodes; a ``warm_start`` shortens
    it. With ``once``, a node may be recomputed once, for all backward nodes: MXNet's own attributes cannot say more.
    Searches end at the ``deadline``. ``light`` is the schedule of light operators that a search for one with heavy
    operators starts from; a second of these has to save ``price`` bytes.
    """

    training: TrainingGraph
    costs: CostModel
    evaluator: Evaluator
    candidates: Mapping[int, tuple[Entry, ...]]
    segments: Segments
    must_recompute: frozenset[Entry]
    match_ranges: tuple[int, ...]
    max_seconds: float | None = None
    max_bytes: int | None = None
    effort: int = 10_000_000
    warm_start: WarmStart | None = None
    assigns: bool = False
    assigned_only: bool = False
    once: bool = False
    deadline: Deadline = NEVER
    light: RecomputeSchedule | None = None
    price: float = 0.0
    progress: Callable[[str], None] = field(default=lambda _: None)

    @property
    def all_ranges(self) -> tuple[int, ...]:
        """The match ranges by which storage can be planned, and `StorageStrategy.ASSIGNED` where echo may assign it."""
        if self.assigned_only:
            return (StorageStrategy.ASSIGNED,)
        return (*self.match_ranges, StorageStrategy.ASSIGNED) if self.assigns else self.match_ranges

    def choice(self, nodes: Sequence[int] = ()) -> RecomputeMask:
        """The choice that recomputes these candidates, and the entries that must be recomputed."""
        choice = np.zeros(self.evaluator.entries, np.uint8)
        for entry in self.must_recompute:
            choice[self.training.entry_id(entry)] = 1
        for node in nodes:
            choice[self.entry_ids(node)] = 1
        return choice

    def entry_ids(self, node: int) -> list[int]:
        """The numbers of a candidate's recomputable entries."""
        return [self.training.entry_id(entry) for entry in self.candidates[node]]

    @property
    def may_split(self) -> bool:
        """Whether nodes may be recomputed several times: not in a CachedOp, which plans each pass by itself."""
        return not self.once and self.training.runner == Runner.EXECUTOR

    def splits(self, nodes: Iterable[int]) -> RecomputeSchedule:
        """Returns the schedule in which each of these nodes is recomputed once."""
        return once(self.training, nodes)

    def chosen(self, choice: RecomputeMask) -> RecomputeSchedule:
        """The candidates that a choice recomputes, once each."""
        return self.splits(node for node in self.candidates if choice[self.entry_ids(node)[0]])

    def value(self, schedule: RecomputeSchedule) -> Evaluation:
        """Exact bytes and seconds of a schedule, under the best of `all_ranges`."""
        return self.evaluator.evaluate(self.choice(list(schedule)), self.all_ranges, None, schedule)

    def evaluate(
        self, choice: RecomputeMask, match_ranges: Sequence[int] | None = None, limit: int | None = None
    ) -> Evaluation:
        """Exact bytes and seconds of a choice; bytes above a ``limit`` may come out smaller, but above it."""
        return self.evaluator.evaluate(choice, self.match_ranges if match_ranges is None else match_ranges, limit)

    def keeps(self, evaluation: Evaluation) -> bool:
        """Whether a choice is within all limits."""
        return not any(self.rank(evaluation)[: 1 if self.max_bytes is None else 2])

    def cost(self, evaluation: Evaluation) -> tuple[float, float, float]:
        """As `rank`, where without a budget a second costs ``price`` bytes."""
        excess, planned, seconds = self.rank(evaluation)
        return (excess, planned if self.max_bytes is not None else planned + self.price * seconds, seconds)

    def is_deeper(self, value: Evaluation, than: Evaluation) -> bool:
        """Whether a schedule needs fewer bytes, by more than its seconds cost."""
        return value.bytes < than.bytes and self.cost(value) < self.cost(than)

    def rank(self, evaluation: Evaluation) -> tuple[float, float, float]:
        """Smaller is better: first the excess over the limits, then the objective, then what breaks ties."""
        late = 0.0 if self.max_seconds is None else max(0.0, evaluation.seconds - self.max_seconds)
        if self.max_bytes is None:
            return (late, float(evaluation.bytes), evaluation.seconds)
        over = float(max(0, evaluation.bytes - self.max_bytes))
        return (over, late, evaluation.seconds)

    def most_bytes(self, current: Evaluation) -> int | None:
        """Bytes above which no choice can rank before the current one, None where there is no such bound."""
        if self.max_bytes is not None:
            return max(self.max_bytes, current.bytes)
        return current.bytes if self.rank(current)[0] == 0 else None


class Policy(Protocol):
    """A strategy: returns the candidates that are recomputed, and where."""

    @property
    def name(self) -> str: ...
    def choose(self, problem: Problem) -> RecomputeSchedule: ...


# A policy under a deadline: when the time is over, its best choice so far is taken.


def run_with_deadline(policy: Policy, problem: Problem) -> tuple[RecomputeSchedule, bool]:
    """The schedule of a policy, and whether the policy ended before the problem's deadline.

    Otherwise the schedule is the best that the policy evaluated until then, or the one that recomputes nothing.
    """
    if problem.deadline.at == math.inf:
        return policy.choose(problem), True
    timed = _Timed(problem)
    try:
        return policy.choose(replace(problem, evaluator=timed)), not problem.deadline.is_over
    except DeadlineExceeded:
        return timed.best, False


class _Timed:
    """An evaluator that remembers the best choice, and raises `DeadlineExceeded` at the deadline."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._evaluator = problem, problem.evaluator
        self.entries = problem.evaluator.entries
        self.best: RecomputeSchedule = {}
        self._rank = problem.rank(problem.value({}))

    def evaluate(
        self,
        recompute: RecomputeMask,
        match_ranges: Sequence[int],
        limit: int | None = None,
        schedule: RecomputeSchedule | None = None,
    ) -> Evaluation:
        """As `echo.estimators.storage_planner.Evaluator.evaluate`."""
        if self._problem.deadline.is_over:
            raise DeadlineExceeded
        evaluation = self._evaluator.evaluate(recompute, match_ranges, limit, schedule)
        exact = limit is None or evaluation.bytes <= limit
        if exact and StorageStrategy.PEAK not in match_ranges and self._problem.rank(evaluation) < self._rank:
            self._rank = self._problem.rank(evaluation)
            # a copy: a function of the user may go on with the same dictionary
            copied = None if schedule is None else {node: tuple(at) for node, at in schedule.items()}
            self.best = self._problem.chosen(recompute) if copied is None else copied
        return evaluation

    def executed(self, recompute: RecomputeMask, schedule: RecomputeSchedule | None = None) -> RecomputeMask:
        """As `echo.estimators.storage_planner.Evaluator.executed`."""
        return self._evaluator.executed(recompute, schedule)
