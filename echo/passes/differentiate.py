"""The training graph of the user's graph, from the framework's own gradient pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from echo.estimators.inplace import as_stock, why_as_it_is
from echo.estimators.kept import copied, with_kept
from echo.ir.gradients import implementations
from echo.ir.training_graph import TrainingGraph
from echo.passes.request import Request


@dataclass(frozen=True)
class Differentiate:
    """Asks the frontend: never a table of guesses. On CPUs it then has gradients read less where they can.

    With the option ``exact`` (default) those implementations have the same bits. What bits could depend on works in
    place where it does in the user's graph, and nowhere else.
    """

    name: ClassVar[str] = "differentiate"
    needs: ClassVar[tuple[type, ...]] = (Request,)
    gives: ClassVar[type] = TrainingGraph

    def run(self, request: Request) -> TrainingGraph:
        frontend = request.frontend
        training = frontend.differentiate()
        if not frontend.hook:
            return training
        training = with_kept(as_stock(training, frontend.device), frontend.device)
        if frontend.device != "cpu" or why_as_it_is(request.graph, frontend.device):
            return training
        without = copied(training, frontend.device)
        chosen = implementations(training, request.options.exact, frontend.onednn, without)
        return frontend.implemented(training, chosen) if chosen else training
