"""Segments: groups of forward nodes between the compute-heavy operators (Echo, ISCA'20, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph


@dataclass(frozen=True)
class Segment:
    """Node numbers in execution order."""

    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Segments:
    """All segments of a training graph, in the order of their first nodes."""

    segments: tuple[Segment, ...]


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
    return Segments(tuple(Segment(tuple(group)) for group in groups.values()))
