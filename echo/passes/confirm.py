"""Never worse, and the same bits: where MXNet's own planner says otherwise, the user's graph is bound as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Iterable

from echo.estimators.ignored import read_too_late
from echo.ir.storage import ASSIGNED
from echo.ir.training_graph import TrainingGraph
from echo.passes.request import Request
from echo.passes.rewrite import Rewritten
from echo.passes.rules import RULES
from echo.plans.decisions import Mark
from echo.plans.marks import marks_of, outputs_of, splits_of


@dataclass(frozen=True)
class Confirmed:
    """``planned_bytes``: MXNet's own figure for the graph to bind. ``accepted``: the rewritten graph is bound.

    Operators that run again keep ``kept_bytes`` beside that. ``reason`` says why the rewritten graph is not bound.
    """

    planned_bytes: int
    accepted: bool
    reason: str = ""
    kept_bytes: int = 0


@dataclass(frozen=True)
class Confirm:
    """Binds the rewritten graph without memory and compares."""

    name: ClassVar[str] = "confirm"
    needs: ClassVar[tuple[type, ...]] = (Request, TrainingGraph, Rewritten)
    gives: ClassVar[type] = Confirmed

    def run(self, request: Request, training: TrainingGraph, rewritten: Rewritten) -> Confirmed:
        match_range = rewritten.match_range or request.frontend.match_range
        planned, accumulations = request.frontend.oracle(rewritten.graph, match_range)
        if accumulations != training.accumulations:
            reason = "MXNet would add up gradients in another way, which may change the last bit"
            return Confirmed(training.planned_bytes, False, reason)
        late = read_too_late(request.graph, training, request.frontend.device)
        if late and match_range != ASSIGNED:
            reason = f"{late!r} may find another array in the memory of an input of which it reads the shape"
            return Confirmed(training.planned_bytes, False, reason)
        kept = _kept(training, marks_of(request.graph, rewritten.graph))
        reason = "" if request.options.recompute else _too_little(request, training, planned + kept)
        return Confirmed(training.planned_bytes, False, reason) if reason else Confirmed(planned, True, kept_bytes=kept)


def _too_little(request: Request, training: TrainingGraph, planned: int) -> str:
    if planned >= training.planned_bytes:
        return "nothing to gain"
    gain = 1 - planned / training.planned_bytes
    if training.pool and training.pool.late and gain < RULES.late_gain and request.options.memory_budget is None:
        return f"MXNet's engine frees arrays late, and may use up the {gain:.1%} that would be gained"
    return ""


def _kept(training: TrainingGraph, marks: Iterable[Mark]) -> int:
    """The bytes that all copies of the marked nodes keep beside planned memory."""
    copies = {mark.node: max(1, len(splits_of(mark))) for mark in marks if outputs_of(mark)}
    # a node that MXNet merges into an equal one is not counted: that one is
    return sum(node.kept * copies.get(node.user, 0) for _, node in training.operators() if node.user is not None)
