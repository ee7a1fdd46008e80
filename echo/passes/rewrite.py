"""The user's graph with the plan written into node attributes: the one place where graphs are changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Mapping

from echo.graph import Graph
from echo.passes.merged import merged
from echo.passes.request import Request
from echo.passes.select import Selection
from echo.training_graph import TrainingGraph

PLAN_ATTRIBUTE = "__echo_recompute__"  # read by the native hook: the recomputed outputs, as "0" or "0,2"
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
        for entry in sorted(selection.recompute):
            user = training.nodes[entry.node].user
            if user is not None and entry.node in selection.nodes:
                outputs.setdefault(user, []).append(entry.index)
        for number, twin in merged(request.graph, training).items():
            if twin in outputs:  # or MXNet would not merge the two any more
                outputs[number] = outputs[twin]
        own = request.frontend.match_range
        match_range = None if selection.match_range == own else selection.match_range
        return Rewritten(mark(request.graph, outputs, request.frontend.hook, match_range), match_range)


def mark(graph: Graph, outputs: Mapping[int, list[int]], hook: bool, match_range: int | None = None) -> Graph:
    """The graph in which these outputs of these nodes are marked as recomputed.

    A match range is written beside each mark, or into every node where nothing is recomputed.
    """
    if not hook:
        return graph.with_attrs({number: {MIRROR_ATTRIBUTE: "True"} for number in outputs})
    marked = graph.with_attrs({number: {PLAN_ATTRIBUTE: ",".join(map(str, out))} for number, out in outputs.items()})
    if match_range is None:
        return marked
    operators = [number for number, node in enumerate(graph.nodes) if not node.is_variable]
    return marked.with_attrs({number: {RANGE_ATTRIBUTE: str(match_range)} for number in outputs or operators})


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
