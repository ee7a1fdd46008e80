"""Partition of the forward graph at compute-heavy operators (Echo, ISCA'20, section 4).

A segment is a group of forward nodes that may be recomputed and that hang together without passing through an operator
that is too expensive to run twice, or that must not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Mapping

import networkx as nx

from echo.graph import Entry
from echo.passes.candidates import Candidates
from echo.training_graph import TrainingGraph


@dataclass(frozen=True)
class Segment:
    """Node numbers in execution order."""

    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Segments:
    """All segments of a training graph, in the order of their first nodes."""

    segments: tuple[Segment, ...]


def partition(training: TrainingGraph, candidates: Mapping[int, tuple[Entry, ...]]) -> Segments:
    """The connected groups of candidate nodes."""
    connections = nx.Graph()
    connections.add_nodes_from(sorted(candidates))
    for number in sorted(candidates):
        for entry in training.nodes[number].inputs:
            if entry.node in candidates:
                connections.add_edge(entry.node, number)
    groups = sorted(tuple(sorted(group)) for group in nx.connected_components(connections))
    return Segments(tuple(Segment(group) for group in groups))


@dataclass(frozen=True)
class Partition:
    """Finds the segments of light operators."""

    name: ClassVar[str] = "partition"
    needs: ClassVar[tuple[type, ...]] = (TrainingGraph, Candidates)
    gives: ClassVar[type] = Segments

    def run(self, training: TrainingGraph, candidates: Candidates) -> Segments:
        return partition(training, candidates.light)
