"""Seconds of every node, measured on the user's device where that is possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from echo.estimators.overhead import MOST_LONGER, Overhead
from echo.ir.training_graph import TrainingGraph
from echo.passes.request import Request


@dataclass(frozen=True)
class EstimateOverhead:
    """``time_limit``: seconds that measuring may take, or for long steps `MOST_LONGER` times as many, but no more than
    half of those that are left for planning; operators that are not measured by then are estimated.

    The start of the process that measures counts. With a warm start, ``warm_time_limit`` starts no such process: the
    families of operators were measured for another graph of the same model.
    """

    time_limit: float = 1.0
    warm_time_limit: float = 0.0
    name: ClassVar[str] = "overhead"
    needs: ClassVar[tuple[type, ...]] = (Request, TrainingGraph)
    gives: ClassVar[type] = Overhead

    def run(self, request: Request, training: TrainingGraph) -> Overhead:
        limit = self.time_limit if request.warm_start is None else self.warm_time_limit
        limit = min(limit, request.deadline.with_room().left / (2 * MOST_LONGER))
        return request.frontend.overhead(training, limit)
