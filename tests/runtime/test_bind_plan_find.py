"""Which plan a bind gets: none inside of an operator, and in a pool the one that makes it grow least."""

from __future__ import annotations

import logging
from typing import Any

import mxnet as mx
import pytest

from benchmarks.models import SMALL
from echo.frontend.symbols import graph_of, infer_binding
from echo.plans.options import Options
from echo.runtime import bind_plan
from echo.runtime.applied import Pool
from echo.runtime.bind_plan import find_plan, framework_of, inside_operator, plan_bind
from echo.runtime.bind_request import BindRequest

pytestmark = pytest.mark.usefixtures("cheap_planning")
MODEL = SMALL["lm"]()
GRAPH = graph_of(MODEL.symbol)
BINDING = infer_binding(MODEL.symbol, MODEL.shapes, None, MODEL.grad_req())
OPTIONS = Options(max_overhead=None, fuse=False)


def request(shared: Any = None) -> BindRequest:
    return BindRequest(MODEL.symbol, mx.cpu(), lambda *_: None, lambda: BINDING, "", shared)


def test_a_session_is_made_once_and_late() -> None:
    asked: list[int] = []
    session = framework_of(GRAPH, lambda: asked.append(1) or BINDING, mx.cpu())  # type: ignore[func-returns-value]
    assert not asked
    assert session() is session()
    assert asked == [1]


def test_bind_inside_of_an_operator_gets_no_plan(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not inside_operator()
    monkeypatch.setattr(bind_plan, "inside_operator", lambda: True)
    with caplog.at_level(logging.DEBUG, "echo"):
        assert find_plan(GRAPH, lambda: BINDING, mx.cpu(), OPTIONS) is None
    assert "inside of a Custom operator" in caplog.text
    assert plan_bind(GRAPH, request(), OPTIONS, False) == (None, None)


def test_a_plan_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(bind_plan.PLANNER.summary, "add", told.append)
    found, pool = plan_bind(GRAPH, request(), OPTIONS, False)
    assert found is not None
    assert pool is not None
    assert found.chunks is not None
    assert sorted(pool.chunks) == sorted(Pool(found.chunks).chunks)
    assert told == [found.plan]


@pytest.mark.parametrize(("followed", "own", "taken"), [(0, 50, 0), (90, 50, 1), (90, 95, 0)])
def test_pool_takes_the_plan_that_makes_it_grow_less(
    followed: int, own: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PlannedGraph:
        graph, plan = None, None

        def __init__(self, name: str, grows: int) -> None:
            self.name, self.chunks = name, (1000, grows) if grows else (1000,)

    choices = {True: PlannedGraph("followed", 1000 * (followed > 0) + followed), False: PlannedGraph("own", 1000 + own)}
    monkeypatch.setattr(bind_plan, "pool_of", lambda *_: Pool([1000]))
    monkeypatch.setattr(bind_plan, "leader_of", lambda _: "leader")
    monkeypatch.setattr(bind_plan, "_tell", lambda _: None)
    monkeypatch.setattr(bind_plan, "_plan", lambda session, options, details, leader: choices[leader is not None])
    found, pool = plan_bind(GRAPH, request(), OPTIONS, False)
    assert found is choices[not taken]
    assert pool is not None
    assert sorted(pool.chunks) == sorted(-(-size // 4) * 4 for size in found.chunks)  # type: ignore[union-attr]


def test_budgets_follow_no_other_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(bind_plan, "pool_of", lambda *_: Pool([1 << 40]))
    monkeypatch.setattr(bind_plan, "leader_of", lambda _: "leader")
    monkeypatch.setattr(bind_plan, "_plan", lambda session, options, details, leader: seen.append(leader))
    for options in (OPTIONS, Options(memory_budget=1.0), Options(policy="echo")):
        plan_bind(GRAPH, request(), options, False)
    assert seen == ["leader", None, None]
