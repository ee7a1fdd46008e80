"""The planner of a process: what it remembers, and what it lets go of."""

from __future__ import annotations

import gc
import weakref

import pytest

from benchmarks.models import SMALL
from echo.errors import UnsupportedError
from echo.frontend.framework import MxnetFramework
from echo.ir.training_graph import TrainingGraph
from echo.planning.planner import Planner
from echo.plans.options import Options
from tests.planning.test_reuse import framework_of

MODEL = SMALL["lm"]()


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("fuse", [False, True])
def test_kept_plan_holds_no_training_graph(fuse: bool) -> None:
    frameworks = [framework_of(MODEL)]
    training = weakref.ref(frameworks[0].differentiate())
    planner = Planner()
    found = planner.plan(lambda: frameworks[0], Options(fuse=fuse, max_overhead=None))
    assert training() is not None
    frameworks.clear()
    gc.collect()
    assert training() is None
    assert found.plan.why(found.plan.recomputed[0].name)


@pytest.mark.usefixtures("cheap_planning")
def test_training_graph_is_gone_before_python_searches_for_garbage_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[TrainingGraph]] = []
    searched: list[bool] = []

    def framework() -> MxnetFramework:
        new = framework_of(MODEL)
        made.append(weakref.ref(new.differentiate()))
        return new

    monkeypatch.setattr(gc, "enable", lambda enable=gc.enable: (searched.append(made[0]() is not None), enable()))
    Planner().plan(framework, Options(max_overhead=None), details=False)
    assert searched == [False]


@pytest.mark.usefixtures("cheap_planning")
def test_the_oldest_plan_goes_where_there_are_too_many_and_all_go_when_told() -> None:
    """Plans in memory: an answer from there is the same object, any other one is made again or read from the disk."""
    framework = framework_of(MODEL)
    planner = Planner(most=2)

    def graph(bound: float) -> object:
        options = Options(fuse=False, max_overhead=bound)
        return planner.plan(framework.fresh_copy, options, details=False).graph

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


@pytest.mark.usefixtures("cheap_planning")
def test_planning_without_the_hook_raises_if_strict_and_else_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("echo.frontend.framework.install_hook", lambda: "another MXNet")
    framework = framework_of(MODEL)
    with pytest.raises(UnsupportedError, match="without the native hook, plans save less: another MXNet"):
        Planner().plan(framework.fresh_copy, Options(fuse=False, strict=True))
    for _ in range(2):
        Planner().plan(framework.fresh_copy, Options(fuse=False))
    assert [record.getMessage() for record in caplog.records] == [
        "echo: without the native hook, plans save less: another MXNet"
    ]
