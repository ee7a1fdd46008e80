"""The policy of the Echo paper (ISCA'20, sections 4 and 5): recompute cheap segments whose inputs are smaller.

For each segment the nodes are taken from its end backwards: recomputing one more saves its feature map if a gradient
reads it, and costs the stashing of inputs that were not stashed before. Only feature maps that a gradient needs are
charged. Beyond the paper, the memory that recomputation itself needs while a segment's gradients run is bounded by one
allowance for all segments, chosen so that stash plus allowance is least. Linear in nodes but for sorting.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from echo.ir.graph import Entry
from echo.ir.schedule import RecomputeSchedule
from echo.ir.training_graph import TrainingGraph
from echo.policies.problem import CandidateSegment, Problem


@dataclass
class _Ladder:
    """A segment's nodes from its end backwards, and the numbers of them that are worth recomputing."""

    nodes: list[int] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)


@dataclass(frozen=True)
class _Step:
    """Recomputes the first ``count`` nodes of a ladder: ``saved`` bytes less are stashed.

    The nodes take ``seconds``, and hold ``transient`` bytes while gradients of the segment run.
    """

    ladder: _Ladder
    count: int
    saved: int
    transient: int
    seconds: float


@dataclass
class _Walk:
    """State of the walk through one segment, from its end backwards."""

    stashed: set[Entry]
    saved: int = 0
    transient: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Echo:
    """Recomputes the segments that save memory, the cheapest bytes first, within ``max_seconds``."""

    name: str = "echo"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        ladders = [_ladder(problem, segment) for segment in problem.segments.segments]
        best: tuple[float, list[_Step]] | None = None
        smallest = _largest_map(problem)
        for allowance in _allowances(smallest, ladders):
            steps = [_best_within(ladder.steps, allowance) for ladder in ladders]
            taken = _within_time([step for step in steps if step], problem.max_seconds)
            total = max(allowance, smallest) - sum(step.saved for step in taken)
            if best is None or total < best[0]:
                best = (total, taken)
        nodes = [number for step in (best[1] if best else []) for number in step.ladder.nodes[: step.count]]
        return problem.splits(nodes)


def _largest_map(problem: Problem) -> int:
    # a gradient always needs room for one feature map alongside the stash: recomputing a single one costs nothing extra
    return max((problem.training.type_of(e[0]).bytes for e in problem.candidates.values()), default=0)


def _allowances(smallest: int, ladders: list[_Ladder]) -> list[int]:
    """Allowances from one feature map to the most that a segment could use, each a quarter more than the last."""
    largest = max((step.transient for ladder in ladders for step in ladder.steps), default=0)
    allowances = [smallest]
    while 0 < allowances[-1] < largest:
        allowances.append(min(largest, allowances[-1] * 5 // 4 + 1))
    return allowances


def _best_within(steps: list[_Step], allowance: int) -> _Step | None:
    fitting = [step for step in steps if step.transient <= allowance and step.saved > 0]
    return max(fitting, key=lambda step: (step.saved, -step.seconds), default=None)


def _within_time(steps: list[_Step], max_seconds: float | None) -> list[_Step]:
    if max_seconds is None:
        return steps
    taken, spent = [], 0.0
    for step in sorted(steps, key=lambda step: step.seconds / step.saved):
        if spent + step.seconds <= max_seconds:
            taken.append(step)
            spent += step.seconds
    return taken


def _ladder(problem: Problem, segment: CandidateSegment) -> _Ladder:
    """The ladder of the last 1, 2, 3, ... nodes of a segment that gradients need."""
    training = problem.training
    walk = _Walk(stashed=_stash_around(training, problem, segment))
    ladder = _Ladder()
    for number in reversed(segment.nodes):
        outputs = problem.candidates[number]
        if not any(entry in walk.stashed for entry in outputs):
            continue  # no gradient needs it, directly or to recompute another feature map
        _recompute(training, problem, walk, number)
        ladder.nodes.append(number)
        if walk.saved > (ladder.steps[-1].saved if ladder.steps else 0):
            step = _Step(ladder, len(ladder.nodes), walk.saved, walk.transient, walk.seconds)
            ladder.steps.append(step)
    return ladder


def _stash_around(training: TrainingGraph, problem: Problem, segment: CandidateSegment) -> set[Entry]:
    """The inputs and outputs of a segment's nodes that gradients read, and that are therefore stashed."""
    around = {Entry(e.node, e.index) for number in segment.nodes for e in training.nodes[number].inputs}
    around |= {entry for number in segment.nodes for entry in problem.candidates[number]}
    return {entry for entry in around if entry in training.backward_readers}


def _recompute(training: TrainingGraph, problem: Problem, walk: _Walk, number: int) -> None:
    walk.seconds += problem.costs.seconds[number]
    for entry in problem.candidates[number]:
        size = training.type_of(entry).bytes
        walk.transient += size
        if entry in walk.stashed:
            walk.stashed.discard(entry)
            walk.saved += size
    for entry in map(lambda e: Entry(e.node, e.index), training.nodes[number].inputs):
        if entry in walk.stashed or training.nodes[entry.node].is_variable:
            continue
        walk.stashed.add(entry)
        walk.saved -= training.type_of(entry).bytes
