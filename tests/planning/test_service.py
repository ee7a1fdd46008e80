"""The planner of a process: what it remembers, and what it lets go of."""

from __future__ import annotations

import gc
import weakref

import mxnet as mx
import pytest

from benchmarks.models import SMALL
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import graph_of, infer_binding
from echo.planning.service import Planner
from echo.plans.options import Options

MODEL = SMALL["lm"]()


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("fuse", [False, True])
def test_who_keeps_a_plan_keeps_no_training_graph(fuse: bool) -> None:
    binding = infer_binding(MODEL.symbol, MODEL.shapes, None, MODEL.grad_req())
    sessions = [MxnetSession(graph_of(MODEL.symbol), binding, mx.cpu())]
    training = weakref.ref(sessions[0].differentiate())
    planner = Planner()
    found = planner.plan(lambda: sessions[0], Options(fuse=fuse, max_overhead=None))
    assert training() is not None
    sessions.clear()
    gc.collect()
    assert training() is None
    assert found.plan.why(found.plan.recomputed[0].name)


@pytest.mark.usefixtures("cheap_planning")
def test_the_oldest_plan_goes_where_there_are_too_many_and_all_go_when_told() -> None:
    """Plans in memory: an answer from there is the same object, any other one is made anew or read from the disk."""
    binding = infer_binding(MODEL.symbol, MODEL.shapes, None, MODEL.grad_req())
    session = MxnetSession(graph_of(MODEL.symbol), binding, mx.cpu())
    planner = Planner(most=2)

    def graph(bound: float) -> object:
        options = Options(fuse=False, max_overhead=bound)
        return planner.plan(session.anew, options, details=False).graph

    first, second = graph(0.1), graph(0.2)
    assert (graph(0.1), graph(0.2)) == (first, second)
    assert graph(0.1) is first
    assert graph(0.2) is second
    graph(0.3)
    assert graph(0.2) is second
    assert graph(0.1) is not first
    third = graph(0.3)
    planner.forget()
    assert graph(0.3) is not third
