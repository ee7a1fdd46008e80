"""The training graph of the user's graph, from the framework's own gradient pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from echo.passes.request import Request
from echo.training_graph import TrainingGraph


@dataclass(frozen=True)
class Differentiate:
    """Asks the frontend: never a table of guesses."""

    name: ClassVar[str] = "differentiate"
    needs: ClassVar[tuple[type, ...]] = (Request,)
    gives: ClassVar[type] = TrainingGraph

    def run(self, request: Request) -> TrainingGraph:
        return request.frontend.differentiate()
