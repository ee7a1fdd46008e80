"""The user's graph with the plan written into node attributes: the one place where graphs are changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Mapping, Sequence

from echo.graph import Graph
from echo.passes.merged import merged
from echo.passes.request import Request
from echo.passes.select import Selection
from echo.training_graph import TrainingGraph

# Read by the native hook: the recomputed outputs, as "0" or "0,2"; where a node runs again more than once, or not for
# all backward nodes, then the backward nodes at which that begins, counted from 0, as "0@17,230".
PLAN_ATTRIBUTE = "__echo_recompute__"
RANGE_ATTRIBUTE = "__echo_match_range__"  # read by the native hook: the match range of MXNet's memory planner
MIRROR_ATTRIBUTE = "__force_mirroring__"  # read by MXNet itself


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
        ranks = _backward_ranks(training)
        for entry in sorted(selection.recompute):
            user = training.nodes[entry.node].user
            if user is not None and entry.node in selection.runs:
                outputs.setdefault(user, []).append(entry.index)
                splits[user] = [ranks[slot] for slot in selection.splits.get(entry.node, ())]
        for number, twin in merged(request.graph, training).items():
            if twin in outputs:  # or MXNet would not merge the two any more
                outputs[number], splits[number] = outputs[twin], splits[twin]
        own = request.frontend.match_range
        match_range = None if selection.match_range == own else selection.match_range
        return Rewritten(mark(request.graph, outputs, request.frontend.hook, match_range, splits), match_range)


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
) -> Graph:
    """The graph in which these outputs of these nodes are marked as recomputed.

    ``splits`` are backward nodes, counted from 0, at which another copy of a node begins; by default all of them read
    the same. A match range is written beside each mark, or into every node where nothing is recomputed.
    """
    if not hook:
        return graph.with_attrs({number: {MIRROR_ATTRIBUTE: "True"} for number in outputs})
    texts = {number: _text(out, (splits or {}).get(number, ())) for number, out in outputs.items()}
    marked = graph.with_attrs({number: {PLAN_ATTRIBUTE: text} for number, text in texts.items()})
    if match_range is None:
        return marked
    operators = [number for number, node in enumerate(graph.nodes) if not node.is_variable]
    return marked.with_attrs({number: {RANGE_ATTRIBUTE: str(match_range)} for number in outputs or operators})


def _text(outputs: Sequence[int], splits: Sequence[int]) -> str:
    where = "" if list(splits) in ([], [0]) else "@" + ",".join(map(str, splits))
    return ",".join(map(str, outputs)) + where


def marked(user: Graph, rewritten: Graph) -> dict[int, str]:
    """The nodes that a plan runs again, with the attribute that says so; not those that the user marked himself."""
    return {
        number: name
        for number, (before, after) in enumerate(zip(user.nodes, rewritten.nodes))
        for name in (PLAN_ATTRIBUTE, MIRROR_ATTRIBUTE)
        if name in after.attrs and name not in before.attrs
    }


def unmarked(user: Graph, rewritten: Graph) -> Graph:
    """What MXNet made of a rewritten graph, without the marks of the plan."""
    own = set().union(*(node.attrs for node in user.nodes))
    for name in {PLAN_ATTRIBUTE, RANGE_ATTRIBUTE, MIRROR_ATTRIBUTE} - own:
        rewritten = rewritten.without_attr(name)
    return rewritten
