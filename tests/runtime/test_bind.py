"""What a bind asks of planning, and what it remembers."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import nmt_symbol
from echo import pipeline
from echo.errors import BudgetError
from echo.runtime import executor as executor_module
from tests.support.cases import with_dropout

pytestmark = pytest.mark.usefixtures("cheap_planning")
SHAPES: dict[str, Any] = dict.fromkeys(("source", "target", "softmax_label"), (8, 6))


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows by each request that is planned."""
    seen: list[Any] = []
    plan = pipeline.plan

    def counted(request: Any) -> Any:
        seen.append(request)
        return plan(request)

    monkeypatch.setattr(pipeline, "plan", counted)
    return seen


def test_a_budget_out_of_reach_is_found_out_once(plans: list[Any]) -> None:
    errors = []
    symbol = echo.optimize(nmt_symbol(6, 16, 40), memory_budget=1000)
    for _ in range(3):
        with pytest.raises(BudgetError, match="1,000 bytes cannot be met") as caught:
            symbol.simple_bind(mx.cpu(), **SHAPES)
        errors.append(caught.value)
        assert len(plans) == 1
    assert len({str(error) for error in errors}) == 1
    assert len({error.reachable for error in errors}) == 1
    assert errors[1] is not errors[2]


def test_a_part_that_is_out_of_reach_is_named_as_it_was_given() -> None:
    with pytest.raises(BudgetError, match=r"bytes \(1%\) cannot be met"):
        echo.optimize(nmt_symbol(6, 16, 40), memory_budget="1%").simple_bind(mx.cpu(), **SHAPES)


def test_the_smallest_plan_is_found_once(plans: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "echo"), echo.enable(memory_budget=1000):
        symbol = nmt_symbol(6, 16, 40)
        symbol.simple_bind(mx.cpu(), **SHAPES)
        before = len(plans)
        symbol.simple_bind(mx.cpu(), **SHAPES)
    assert len(plans) == before
    assert "The smallest plan is used" in caplog.text


def test_budget_errors_can_be_copied_and_sent() -> None:
    error = BudgetError(5, 7, "weights", " within max_overhead=0.1")
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(other), str(other), other.budget, other.reachable) == (BudgetError, str(error), 5, 7)


def test_echo_plans_none_of_its_own_binds_when_a_planned_executor_predicts(
    plans: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "_draws_in", lambda *_: True)  # so that MXNet is asked what draws
    with echo.enable(max_overhead=None):
        executor = with_dropout().simple_bind(mx.cpu(), data=(16, 20))
        bound = len(plans)
        assert bound == 1
        executor.forward(is_train=False)
    assert executor._random
    assert len(plans) == bound
