"""Seconds of every node, measured on the user's device where that is possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from echo.estimators.overhead import Overhead
from echo.ir.training_graph import TrainingGraph
from echo.passes.request import Request


@dataclass(frozen=True)
class EstimateOverhead:
    """``time_limit``: seconds of work that measuring may take, or for long steps up to twice as many.

    Operators that are not measured by then are estimated. By the clock, measuring ends after a third of the time that
    is left for planning: the rest is for the search. The start of the process that measures counts. With a warm start,
    ``warm_time_limit`` starts no such process: the families of operators were measured for another graph of the same
    model.
    """

    time_limit: float = 1.0
    warm_time_limit: float = 0.0
    name: ClassVar[str] = "overhead"
    needs: ClassVar[tuple[type, ...]] = (Request, TrainingGraph)
    gives: ClassVar[type] = Overhead

    def run(self, request: Request, training: TrainingGraph) -> Overhead:
        limit = self.time_limit if request.warm_start is None else self.warm_time_limit
        return request.frontend.overhead(training, limit, request.deadline.with_room().left / 3)
