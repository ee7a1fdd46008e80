"""The training graph of the user's graph, from the framework's own gradient pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from echo.estimators.inplace import as_stock, copied, with_kept
from echo.ir.gradient_rules import implementations
from echo.ir.training_graph import TrainingGraph
from echo.passes.request import Request


@dataclass(frozen=True)
class Differentiate:
    """Asks the frontend, which asks MXNet. Gradients then get rules by which they read less where they can.

    With the option ``exact`` (default) those rules keep every bit. An operator whose bits could depend on it works in
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
        if request.why_as_it_is:
            return training
        copied_entries = copied(training, frontend.device)
        rules = implementations(training, request.options.exact, frontend.onednn, copied_entries, frontend.cudnn)
        return frontend.implemented(training, rules) if rules else training
