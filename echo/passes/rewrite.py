"""The user's graph with the plan written into node attributes: the one place where graphs are changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Mapping

from echo.ir.graph import Graph
from echo.ir.op_spec import APART_ATTRIBUTE, GRADIENT_ATTRIBUTE, GradientRule
from echo.ir.training_graph import KEEPS_MEMORY, TrainingGraph, common_subexpressions
from echo.passes.request import Request
from echo.passes.select import Selection
from echo.plans.decisions import mark


@dataclass(frozen=True)
class Rewritten:
    """The graph to bind, and the match range to bind it under (None: leave MXNet's own).

    The hook reads the range from the graph; without the hook, the runtime sets it in the environment at bind.
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
        for duplicate, number in common_subexpressions(request.graph, training).items():
            if number in outputs:  # with unequal marks, MXNet would not merge the two any more
                outputs[duplicate], splits[duplicate] = outputs[number], splits[number]
        default_range = request.frontend.match_range
        match_range = None if selection.match_range == default_range else selection.match_range
        graph = request.graph.with_attrs(gradient_marks(request.graph, training, training.implementations))
        if outputs or training.implementations:
            graph = graph.with_attrs(on_equal_nodes(request.graph, training, APART_ATTRIBUTE, training.apart))
        static = training.runner in KEEPS_MEMORY
        return Rewritten(mark(graph, outputs, request.frontend.hook, match_range, splits, static), match_range)


def gradient_marks(
    graph: Graph, training: TrainingGraph, rules: Mapping[int, GradientRule]
) -> dict[int, dict[str, str]]:
    """Attributes by which these nodes, and those that MXNet merges into them, get these gradient rules."""
    return on_equal_nodes(graph, training, GRADIENT_ATTRIBUTE, {number: rule.text for number, rule in rules.items()})


def on_equal_nodes(
    graph: Graph, training: TrainingGraph, name: str, texts: Mapping[int, str]
) -> dict[int, dict[str, str]]:
    """An attribute for these nodes, and for those that MXNet merges into them, which it else would not merge."""
    attributes = {number: {name: text} for number, text in texts.items()}
    if attributes:
        duplicates = common_subexpressions(graph, training).items()
        attributes.update({duplicate: attributes[number] for duplicate, number in duplicates if number in attributes})
    return attributes


def _backward_ranks(training: TrainingGraph) -> dict[int, int]:
    """The backward nodes, counted from 0, by position."""
    backward = [number for number, node in training.operators() if not node.forward]
    return {number: rank for rank, number in enumerate(backward)}
