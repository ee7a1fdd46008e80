"""Tiny graphs that differ in numbers alone from one with nothing to gain are not planned, and train as ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterator

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import echo
from echo.frontend.framework import MxnetFramework
from echo.frontend.symbols import graph_of, infer_binding
from echo.planning.planner import Planner
from echo.planning.reuse import NothingToGain
from echo.plans.decisions import Memory, Note, NoteKind
from echo.plans.options import Options
from echo.runtime import bind_plan
from tests.support.training import assert_same


class Part(gluon.HybridBlock):
    """A slice of one input and one of another, added and scaled."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def hybrid_forward(self, F: Any, first: Any, second: Any) -> Any:
        at, other = self.number % 7, self.number % 5
        parts = F.slice_axis(first, axis=0, begin=at, end=at + 1) + F.slice_axis(
            second, axis=0, begin=other, end=other + 1
        )
        return parts * float(self.number)


class Curved(Part):
    def hybrid_forward(self, F: Any, first: Any, second: Any) -> Any:
        return F.tanh(super().hybrid_forward(F, first, second)) * 2 + 1


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many operators each graph has that is searched for a plan."""
    found: list[int] = []
    search = Planner._search

    def noted(self: Planner, request: Any, *others: Any) -> Any:
        found.append(len(request.graph.nodes))
        return search(self, request, *others)

    monkeypatch.setattr(Planner, "_search", noted)
    bind_plan.PLANNER.forget()
    yield found
    echo.disable()
    bind_plan.PLANNER.forget()


def trained(block: gluon.HybridBlock, rows: int = 8, columns: int = 5) -> dict[str, np.ndarray]:
    block.hybridize()
    arrays = [mx.nd.arange(rows * columns).reshape((rows, columns)) + shift for shift in (0, 1)]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        output = block(*arrays)
    output.backward()
    mx.nd.waitall()
    return {name: array.asnumpy() for name, array in zip("yab", (output, *(array.grad for array in arrays)))}


@pytest.mark.usefixtures("cheap_planning")
def test_other_numbers_need_no_search_and_change_no_bit(searched: list[int]) -> None:
    expected = [trained(Part(number)) for number in range(12)]
    echo.enable()
    graphs, unchanged = bind_plan.PLANNER.summary.graphs, bind_plan.PLANNER.summary.unchanged
    for number in range(12):
        assert_same(trained(Part(number)), expected[number])
    assert len(searched) == 1
    assert (bind_plan.PLANNER.summary.graphs - graphs, bind_plan.PLANNER.summary.unchanged - unchanged) == (12, 12)


@pytest.mark.usefixtures("cheap_planning")
def test_other_operators_options_and_large_arrays_are_searched(searched: list[int]) -> None:
    echo.enable()
    trained(Part(1))
    trained(Curved(1))
    assert len(searched) == 2
    trained(Part(2), columns=20_000)
    assert len(searched) == 3
    echo.enable(max_overhead=0.2)
    trained(Part(3))
    assert len(searched) == 4
    trained(Part(4))
    assert len(searched) == 4


@pytest.mark.usefixtures("cheap_planning")
def test_a_block_that_the_program_named_has_a_plan(searched: list[int]) -> None:
    echo.enable()
    trained(Part(1))
    block = echo.optimize(Part(2))
    trained(block)
    assert len(searched) == 2
    assert block._cached_op.plans


def noted(symbol: mx.sym.Symbol, **changes: Any) -> bool:
    """Whether another graph with other numbers counts as one with nothing to gain after this one's plan."""
    graph, options, known = graph_of(symbol), Options(), NothingToGain()
    plan = echo.plan(symbol, grad_req="write", data=(2, 3))
    assert plan.changes_nothing
    known.note(graph, options, replace(plan, **changes))
    framework = MxnetFramework(graph, infer_binding(symbol, {"data": (2, 3)}), mx.cpu())
    return known.holds(graph, lambda: framework, options)


@pytest.mark.usefixtures("cheap_planning")
def test_only_whole_plans_that_change_nothing_about_tiny_graphs_are_remembered() -> None:
    symbol = mx.sym.var("data") + 1
    assert noted(symbol)
    assert not noted(symbol, applied="hook")
    assert not noted(symbol, notes=(Note("late", NoteKind.LATE),))
    assert not noted(symbol, before=Memory(200_000, 0, {}, {}, {}))
    for number in range(70):
        symbol = symbol + number
    assert not noted(symbol)
