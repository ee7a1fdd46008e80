"""The user's graph with the plan written into node attributes: the one place where graphs are changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Mapping, Sequence

from echo.estimators.assignment import ASSIGNED
from echo.estimators.inplace import APART_ATTRIBUTE
from echo.ir.cse import merged
from echo.ir.graph import Graph
from echo.ir.training_graph import KEEPS_MEMORY, TrainingGraph
from echo.passes.request import Request
from echo.passes.select import Selection
from echo.plans.plan import Mark

# Read by the native hook: the recomputed outputs, as "0" or "0,2"; where a node runs again more than once, or not for
# all backward nodes, then the backward nodes at which that begins, counted from 0, as "0@17,230".
PLAN_ATTRIBUTE = "__echo_recompute__"
# Read by the native hook: the match range of MXNet's memory planner, -1 for echo's own assignment, -1s for that of a
# CachedOp with static_alloc, in which MXNet computes sums of gradients in place.
RANGE_ATTRIBUTE = "__echo_match_range__"
GRADIENT_ATTRIBUTE = "__echo_gradient__"  # read by the native hook: another implementation of the gradient
MIRROR_ATTRIBUTE = "__force_mirroring__"  # read by MXNet itself
_ATTRIBUTES = (PLAN_ATTRIBUTE, RANGE_ATTRIBUTE, MIRROR_ATTRIBUTE, GRADIENT_ATTRIBUTE, APART_ATTRIBUTE)


@dataclass(frozen=True)
class Rewritten:
    """The graph to bind, and the match range to bind it under (None: leave MXNet's own).

    The hook finds the range in the graph; without it the environment has to say so at bind.
    """

    graph: Graph
    match_range: int | None


@dataclass(frozen=True)
class Rewrite:
    """Marks the nodes that run twice; everything else stays as the user made it."""

    name: ClassVar[str] = "rewrite"
    needs: ClassVar[tuple[type, ...]] = (Request, TrainingGraph, Selection)
    gives: ClassVar[type] = Rewritten

    def run(self, request: Request, training: TrainingGraph, selection: Selection) -> Rewritten:
        outputs: dict[int, list[int]] = {}
        splits: dict[int, list[int]] = {}
        ranks = _backward_ranks(training)  # none without the hook, where all backward nodes read the same copy
        for entry in sorted(selection.recompute):
            user = training.nodes[entry.node].user
            if user is not None and entry.node in selection.runs:
                outputs.setdefault(user, []).append(entry.index)
                splits[user] = [ranks[slot] for slot in selection.splits.get(entry.node, ()) if slot in ranks]
        for number, twin in merged(request.graph, training).items():
            if twin in outputs:  # or MXNet would not merge the two any more
                outputs[number], splits[number] = outputs[twin], splits[twin]
        own = request.frontend.match_range
        match_range = None if selection.match_range == own else selection.match_range
        graph = request.graph.with_attrs(gradient_marks(request.graph, training, training.implementations))
        if outputs or training.implementations:
            graph = graph.with_attrs(on_twins(request.graph, training, APART_ATTRIBUTE, training.apart))
        static = training.runner in KEEPS_MEMORY
        return Rewritten(mark(graph, outputs, request.frontend.hook, match_range, splits, static), match_range)


def gradient_marks(
    graph: Graph, training: TrainingGraph, implementations: Mapping[int, str]
) -> dict[int, dict[str, str]]:
    """Attributes that give the gradients of these nodes, and of those that MXNet merges into them, these forms."""
    return on_twins(graph, training, GRADIENT_ATTRIBUTE, implementations)


def on_twins(
    graph: Graph, training: TrainingGraph, name: str, texts: Mapping[int, str]
) -> dict[int, dict[str, str]]:
    """An attribute for these nodes, and for those that MXNet merges into them: it would not merge them any more."""
    found = {number: {name: text} for number, text in texts.items()}
    if found:
        twins = merged(graph, training).items()
        found.update({number: found[twin] for number, twin in twins if twin in found})
    return found


def _backward_ranks(training: TrainingGraph) -> dict[int, int]:
    """The backward nodes, counted from 0, by position."""
    backward = [number for number, node in training.operators() if not node.forward]
    return {number: rank for rank, number in enumerate(backward)}


def mark(
    graph: Graph,
    outputs: Mapping[int, list[int]],
    hook: bool,
    match_range: int | None = None,
    splits: Mapping[int, Sequence[int]] | None = None,
    static: bool = False,
) -> Graph:
    """The graph in which these outputs of these nodes are marked as recomputed.

    ``splits`` are backward nodes, counted from 0, at which another copy of a node begins; by default all of them read
    the same. A match range is written beside each mark, or into every node where nothing is recomputed; ``static`` says
    that a CachedOp with static_alloc runs the graph.
    """
    if not hook:
        return graph.with_attrs({number: {MIRROR_ATTRIBUTE: "True"} for number in outputs})
    texts = {number: _text(out, (splits or {}).get(number, ())) for number, out in outputs.items()}
    marked = graph.with_attrs({number: {PLAN_ATTRIBUTE: text} for number, text in texts.items()})
    if match_range is None:
        return marked
    operators = [number for number, node in enumerate(graph.nodes) if not node.is_variable and node.takes_attrs]
    text = range_text(match_range, static)
    return marked.with_attrs({number: {RANGE_ATTRIBUTE: text} for number in outputs or operators})


def range_text(match_range: int, static: bool) -> str:
    """A match range as the hook reads it; ``static`` as for `mark`."""
    return f"{match_range}s" if static and match_range == ASSIGNED else str(match_range)


def _text(outputs: Sequence[int], splits: Sequence[int]) -> str:
    where = "" if list(splits) in ([], [0]) else "@" + ",".join(map(str, splits))
    return ",".join(map(str, sorted(outputs))) + where


def marked(user: Graph, rewritten: Graph) -> dict[int, str]:
    """The nodes that a plan runs again, with the attribute that says so; not those that the user marked himself."""
    return {
        number: name
        for number, (before, after) in enumerate(zip(user.nodes, rewritten.nodes))
        for name in (PLAN_ATTRIBUTE, MIRROR_ATTRIBUTE)
        if name in after.attrs and name not in before.attrs
    }


def implements(graph: Graph) -> bool:
    """Whether a rewritten graph has other implementations of gradients."""
    return any(GRADIENT_ATTRIBUTE in node.attrs for node in graph.nodes)


def unmarked(user: Graph, rewritten: Graph) -> Graph:
    """What MXNet made of a rewritten graph, without the marks of the plan."""
    own = set().union(*(node.attrs for node in user.nodes))
    for name in set(_ATTRIBUTES) - own:
        rewritten = rewritten.without_attr(name)
    return rewritten


def marks_of(user: Graph, rewritten: Graph) -> tuple[Mark, ...]:
    """What a rewritten graph has that the user's has not; `echo.passes.marks` puts it in again."""
    added = (
        {name: after.attrs[name] for name in _ATTRIBUTES if name in after.attrs and name not in before.attrs}
        for before, after in zip(user.nodes, rewritten.nodes)
    )
    return tuple(
        Mark(number, user.nodes[number].op, attrs) for number, attrs in enumerate(added) if attrs
    )


def outputs_of(mark: Mark) -> tuple[int, ...]:
    """The outputs that a mark recomputes; of MXNet's own mirroring, the first, which stands for all."""
    if MIRROR_ATTRIBUTE in mark.attrs:
        return (0,)
    outputs, _, _ = mark.attrs.get(PLAN_ATTRIBUTE, "").partition("@")
    return tuple(int(output) for output in outputs.split(",") if output)


def splits_of(mark: Mark) -> tuple[int, ...]:
    """The backward nodes, counted from 0, at which another copy begins; none where all read the same."""
    _, _, splits = mark.attrs.get(PLAN_ATTRIBUTE, "").partition("@")
    return tuple(int(split) for split in splits.split(",") if split)
