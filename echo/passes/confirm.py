"""Never worse, and the same bits: where MXNet's own planner says otherwise, the user's graph is bound as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Iterable

from echo.estimators.inplace import read_too_late
from echo.estimators.overhead import Overhead
from echo.ir.training_graph import ASSIGNED, TrainingGraph
from echo.passes.request import Request
from echo.passes.rewrite import Rewritten
from echo.passes.rules import RULES
from echo.passes.select import Selection
from echo.plans.decisions import Mark, marks_of, outputs_of, splits_of
from echo.plans.options import SEARCH


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
    needs: ClassVar[tuple[type, ...]] = (Request, TrainingGraph, Rewritten, Selection, Overhead)
    gives: ClassVar[type] = Confirmed

    def run(
        self, request: Request, training: TrainingGraph, rewritten: Rewritten, selection: Selection, overhead: Overhead
    ) -> Confirmed:
        confirmed = self.confirmed(request, training, rewritten)
        reason = _too_dear(request, training, confirmed, selection, overhead) if confirmed.accepted else ""
        return Confirmed(training.planned_bytes, False, reason) if reason else confirmed

    def confirmed(self, request: Request, training: TrainingGraph, rewritten: Rewritten) -> Confirmed:
        """The verdict on the bytes and on the bits, whatever time it takes."""
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


def _too_dear(
    request: Request, training: TrainingGraph, confirmed: Confirmed, selection: Selection, overhead: Overhead
) -> str:
    """Why the time of recomputation is too much for the bytes that it saves of the user's own graph, as measured."""
    options = request.options
    asks = options.asks_for_memory or options.max_overhead != "auto" or options.recompute or options.policy != SEARCH
    cost = selection.seconds / overhead.step_seconds if overhead.step_seconds else 0.0
    if asks or request.fused or not overhead.is_timed or cost <= RULES.cost:
        return ""
    saved = training.planned_bytes - confirmed.planned_bytes - confirmed.kept_bytes
    part = saved / max(1, training.planned_bytes + sum(request.static.values()))
    return "" if part >= RULES.gain else f"recomputation would save {part:.1%} of all bytes for {cost:.1%} of the time"


def _kept(training: TrainingGraph, marks: Iterable[Mark]) -> int:
    """The bytes that all copies of the marked nodes keep beside planned memory."""
    copies = {mark.node: max(1, len(splits_of(mark))) for mark in marks if outputs_of(mark)}
    # a node that MXNet merges into an equal one is not counted: that one is
    return sum(node.kept * copies.get(node.user, 0) for _, node in training.operators() if node.user is not None)
