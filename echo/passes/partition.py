"""Partition of the forward graph at compute-heavy operators (Echo, ISCA'20, section 4).

A segment is a group of forward nodes that may be recomputed and that hang together without passing through an operator
that is too expensive to run twice, or that must not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from echo.ir.training_graph import TrainingGraph
from echo.passes.candidates import Candidates
from echo.policies.problem import Segments, partition


@dataclass(frozen=True)
class Partition:
    """Finds the segments of light operators."""

    name: ClassVar[str] = "partition"
    needs: ClassVar[tuple[type, ...]] = (TrainingGraph, Candidates)
    gives: ClassVar[type] = Segments

    def run(self, training: TrainingGraph, candidates: Candidates) -> Segments:
        return partition(training, candidates.light)
