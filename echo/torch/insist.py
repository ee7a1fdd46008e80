"""Nodes that run again in any case, as a training graph in which they already do: every search is the usual one.

Before the first backward node that reads such a node, a backward node computes the same once more, which all backward
nodes from there on read. What a search then finds is translated into positions of the graph as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from echo.ir.graph import Entry
from echo.ir.schedule import RecomputeSchedule, once
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode
from echo.policies.data_graph import data_graph
from echo.torch.planned_graph import PlannedGraph

_SUFFIX = "_again"


@dataclass(frozen=True)
class WithRuns:
    """A training graph in which nodes of ``graph`` already run again, and the seconds of its nodes.

    ``places`` has for each node the one of ``graph`` that it is, or before which it runs; ``runs`` are the nodes of
    ``graph`` that run again.
    """

    graph: PlannedGraph
    training: TrainingGraph
    seconds: tuple[float, ...]
    places: tuple[int, ...]
    runs: frozenset[int]

    @property
    def spent(self) -> float:
        """The seconds of the nodes that run again in it."""
        return sum(self.graph.seconds[number] for number in self.runs)

    def schedule(self, found: RecomputeSchedule) -> RecomputeSchedule:
        """The schedule of ``graph`` in which these nodes run again, and those of a schedule of ``training``."""
        schedule = dict(once(self.graph.training, self.graph.insisted))
        for number, positions in found.items():  # forward nodes have the same numbers in both
            schedule[number] = tuple(sorted({self.places[position] for position in positions}))
        return schedule


def with_runs(graph: PlannedGraph) -> WithRuns:
    """The training graph in which the nodes that the user insists on run again, if a backward node reads them."""
    builder = _Builder(graph)
    for number, node in enumerate(graph.training.nodes):
        if not node.forward:
            for again in builder.missing(number):
                builder.copies[again] = builder.add(again, number, forward=False)
        builder.numbers[number] = builder.add(number, number, node.forward)
    outputs = [Entry(builder.numbers[entry.node], entry.index) for entry in graph.training.outputs]
    data = data_graph(builder.nodes, outputs, builder.seconds)
    return WithRuns(graph, data.training, data.seconds, tuple(builder.places), frozenset(builder.copies))


class _Builder:
    def __init__(self, graph: PlannedGraph) -> None:
        self.graph = graph
        self.nodes: list[TrainingNode] = []
        self.seconds: list[float] = []
        self.places: list[int] = []
        self.numbers: dict[int, int] = {}  # of the nodes of the graph, as they run first
        self.copies: dict[int, int] = {}  # of those that run again

    def add(self, number: int, place: int, forward: bool) -> int:
        """Appends a run of a node, which reads second runs where there are any; returns its number."""
        node = self.graph.training.nodes[number]
        inputs = tuple(
            Entry(self.copies.get(entry.node, self.numbers[entry.node]), entry.index) for entry in node.inputs
        )
        if node.forward and not forward:
            node = node.having(name=node.name + _SUFFIX, forward=False, original=None)
        self.nodes.append(node.having(inputs=inputs))
        self.seconds.append(self.graph.seconds[number])
        self.places.append(place)
        return len(self.nodes) - 1

    def missing(self, number: int) -> list[int]:
        """The nodes that have to run again before a backward node, in the order of the forward pass."""
        found: set[int] = set()
        below = [number]
        while below:
            for entry in self.graph.training.nodes[below.pop()].inputs:
                if entry.node in self.graph.insisted and not (entry.node in self.copies or entry.node in found):
                    found.add(entry.node)
                    below.append(entry.node)
        return sorted(found)
