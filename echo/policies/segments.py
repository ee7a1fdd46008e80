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
    """The connected groups of candidate nodes."""
    home = dict.fromkeys(candidates, -1)  # a node on the way to the first of its group; -1 for the first itself

    def first_of(number: int) -> int:
        first = number
        while home[first] >= 0:
            first = home[first]
        while home[number] >= 0:  # the next one who asks gets there in one step
            home[number], number = first, home[number]
        return first

    numbers = sorted(candidates)
    for number in numbers:
        for entry in training.nodes[number].inputs:
            if entry.node in home:
                one, other = first_of(entry.node), first_of(number)
                if one != other:
                    home[max(one, other)] = min(one, other)
    groups: dict[int, list[int]] = {}
    for number in numbers:
        groups.setdefault(first_of(number), []).append(number)
    return Segments(tuple(Segment(tuple(group)) for group in groups.values()))
