"""Gradients that read less: where MXNet hands a gradient operator more than it reads, or another will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from echo.implementations import implementations
from echo.passes.request import Request
from echo.training_graph import TrainingGraph


@dataclass(frozen=True)
class Implement:
    """Chooses the implementations of gradients; with the option ``exact`` (default) those of the same bits."""

    name: ClassVar[str] = "implement"
    needs: ClassVar[tuple[type, ...]] = (Request, TrainingGraph)
    gives: ClassVar[type] = TrainingGraph

    def run(self, request: Request, training: TrainingGraph) -> TrainingGraph:
        frontend = request.frontend
        if not frontend.hook or frontend.device != "cpu":
            return training
        chosen = implementations(training, request.options.exact, frontend.onednn)
        return frontend.implemented(training, chosen) if chosen else training
