"""The plan of a model for shapes that it was not made for: the same marks, checked again, without a search.

A training whose batches seldom have the same shape twice cannot search for a plan at each of them. What a plan
recomputes hardly depends on the shapes; whether it keeps every bit and saves memory does. So all rules are checked for
the new shapes, and MXNet's planner is asked, which takes some milliseconds. `SpareTime` bounds the seconds that this
takes of a training.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Callable, Iterator

from echo.errors import GraphError
from echo.ir.graph import Graph
from echo.ir.training_graph import TrainingGraph
from echo.passes.analysis import Differentiate
from echo.passes.check_marks import check_marks, with_marks
from echo.passes.fuse import CountWorkspaces, too_large
from echo.passes.patterns.apply import fused_for_shapes
from echo.passes.request import Framework, Request
from echo.passes.rewrite import Confirm, Rewritten
from echo.planning.plan_cache import Found
from echo.planning.rename import Names
from echo.plans.decisions import HIDDEN, KEPT, Decision, Memory, Note
from echo.plans.options import Options
from echo.plans.plan import Plan

_SHARE = 0.05  # of the seconds of training: with all bookkeeping, steps take well below a tenth longer
NOTE = Note("the plan of the model's first shapes, which holds for these: only bytes were computed again")


class SpareTime:
    """Bounds the seconds that plans of further shapes take to a share of the seconds that the program has trained.

    Training counts from when the first plan was made; all other planning is left out. ``clock`` returns seconds.
    """

    def __init__(self, share: float = _SHARE, clock: Callable[[], float] = time.perf_counter) -> None:
        self._share, self._clock = share, clock
        self._began: float | None = None
        self._planning = self._spent = 0.0
        self._depth = 0

    def allows(self, seconds: float, part: float = 1.0) -> bool:
        """Whether so many more seconds are within a part of the share."""
        if self._began is None:
            return False
        trained = self._clock() - self._began - self._planning
        return self._spent + seconds <= part * self._share * trained

    @contextlib.contextmanager
    def planning(self, further: bool = False) -> Iterator[None]:
        """Counts what happens meanwhile as planning, and as that of ``further`` shapes."""
        started, self._depth = self._clock(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            seconds = self._clock() - started
            if not self._depth:
                self._planning += seconds
                self._spent += seconds if further else 0.0
                if self._began is None:
                    self._began, self._planning = self._clock(), 0.0


def follow(model: Found, graph: Graph, framework: Framework, options: Options) -> Found:
    """Returns the plan of a model for the shapes of ``framework``, and the graph to bind, whose chunks are not known.

    Raises:
        GraphError: the plan does not hold for these shapes, or would save nothing; the message says why.
    """
    plan = model.plan
    base, hidden = graph, 0
    if plan.fused:
        if framework.why_no_fusion:
            raise GraphError(f"the plan has fused operators: {framework.why_no_fusion}")
        types = framework.types()
        base, hidden = fused_for_shapes(
            graph, plan.fused, framework.adds, framework.setting, types, framework.inferred
        )  # fmt: skip
        base = framework.runnable(base)
    marked = with_marks(base, plan, framework)
    request = Request(base, options, framework.on(base), details=False)
    if plan.fused and (large := too_large(request.framework)):
        raise GraphError(next(iter(large.values())))
    check_marks(base, plan, request.framework)
    training = Differentiate().run(request)
    confirmed = Confirm().confirmed(request, training, Rewritten(marked, plan.match_range))
    if not confirmed.accepted:
        raise GraphError(confirmed.reason)
    request = replace(request, workspaces=CountWorkspaces().run(request).bytes if plan.fused else 0)
    kept = {KEPT: confirmed.layout_copy_bytes} if confirmed.layout_copy_bytes else {}
    after = Memory(confirmed.planned_bytes, 0, {**request.static, **kept}, {}, {})
    before = Memory(framework.stock_bytes(), 0, _without_workspaces(request, hidden), {}, {})
    if after.total > before.total:
        raise GraphError(f"it would need {after.total:,} bytes, the original graph needs {before.total:,}")
    result = _resized(plan, training, before, after, framework)
    return Found(result, marked, base, None, Names.of(graph, base))


def _without_workspaces(request: Request, hidden: int) -> dict[str, int]:
    static = replace(request, workspaces=0).static
    return {**static, HIDDEN: hidden} if hidden else static


def _resized(plan: Plan, training: TrainingGraph, before: Memory, after: Memory, framework: Framework) -> Plan:
    """The plan with the bytes of other shapes, and with seconds in proportion to the bytes of the original graph."""
    sizes = {
        (node.user, output): array_type.bytes
        for _, node in training.operators()
        if node.user is not None
        for output, array_type in enumerate(node.outputs)
    }
    factor = before.planned / max(1, plan.before.planned)

    def resized(decision: Decision) -> Decision:
        size = sizes.get((decision.node, decision.output), decision.bytes)
        return replace(decision, bytes=size, seconds=decision.seconds * factor)

    return replace(
        plan,
        decisions=tuple(map(resized, plan.decisions)),
        before=before,
        after=after,
        key=framework.key,
        notes=(*(note for note in plan.notes if note != NOTE), NOTE),
        step_seconds=plan.step_seconds * factor,
        overhead_seconds=plan.overhead_seconds * factor,
        stock_seconds=None if plan.stock_seconds is None else plan.stock_seconds * factor,
    )
