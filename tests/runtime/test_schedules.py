"""Nodes that are recomputed several times, and budgets of every size: the bits of the original graph."""

from __future__ import annotations

from typing import Any

import pytest

import echo
from benchmarks.models import SMALL
from echo.frontend.symbols import symbol_of
from tests.runtime.test_bind_models import requested, small, stock
from tests.support.cases import model_case
from tests.support.training import assert_same, bind, train

pytestmark = pytest.mark.usefixtures("cheap_planning")


@pytest.mark.every(5)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", SMALL)
def test_copies_at_random(name: str, seed: int) -> None:
    """Light and compute-heavy operators, each recomputed up to three times, at random backward nodes."""
    (model, values), case = small(name), model_case(name)
    entries = case.draw(seed, 0.8)
    schedule = case.draw_schedule(seed, entries)
    symbol = symbol_of(case.rewritten(entries, schedule=schedule))
    text = bind(symbol, values, requested(model, "write")).debug_str()
    assert any(
        "@" in node.attrs.get("__echo_recompute__", "") for node in case.rewritten(entries, schedule=schedule).nodes
    )
    assert "_echo\n" in text
    assert_same(train(bind(symbol, values, requested(model, "write"))), stock(name, "write"))


@pytest.mark.slow  # twelve searches a model
@pytest.mark.parametrize("name", ["nmt", "resnet50_v1", "lm"])
def test_a_sweep_of_budgets(name: str) -> None:
    """At each of ten budgets: kept, in less time than for all smaller ones, and the same bits."""
    model, values = small(name)
    curve = echo.frontier(model.symbol, budgets=10, fuse=False, **model.shapes)
    least, most = curve.plans[0].after.total, curve.plans[0].before.total
    ladder = [int(least + part * (most - least) / 9) for part in range(10)]
    plans = [curve.within(budget) for budget in ladder]
    assert all(plan.after.total <= budget for plan, budget in zip(plans, ladder))
    totals: list[Any] = [plan.after.total for plan in plans]
    assert totals == sorted(totals), "a larger budget never means a smaller peak"
    seconds = [plan.overhead_seconds for plan in plans]
    assert seconds == sorted(seconds, reverse=True)
    for plan in (plans[index] for index in (0, 2, 5)):
        symbol = echo.optimize(model.symbol, plan=plan)
        assert_same(train(bind(symbol, values, model.grad_req())), stock(name, "write"))
