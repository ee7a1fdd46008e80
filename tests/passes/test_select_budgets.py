"""Limits: budgets that are no size or cannot be met, whose errors say what can be reached; a policy over its bound."""

from __future__ import annotations

import re
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL, random_values
from echo.errors import BudgetError, OptionError
from tests.passes.test_select import select
from tests.support.cases import any_case
from tests.support.planning import costs_of
from tests.support.small_network import SHAPES, network
from tests.support.training import assert_close, assert_same, bind, train

pytestmark = pytest.mark.usefixtures("cheap_planning")


@pytest.mark.parametrize(
    "budget", ["abc", "", "GB", "6 XB", "-6GB", "0", 0, -1, -0.5, 0.0, float("nan"), float("inf"), True, [6], b"6GB"]
)
def test_budgets_that_are_no_size(budget: Any) -> None:
    for call in (echo.plan, echo.optimize):
        with pytest.raises(OptionError, match=re.escape(repr(budget))):
            call(network(), memory_budget=budget, **SHAPES)


def least(message: str) -> int:
    found = re.search(r"the least that can be reached is ([\d,]+) bytes", message)
    assert found, message
    return int(found.group(1).replace(",", ""))


@pytest.mark.every(2)
@pytest.mark.parametrize(("name", "fuse"), [("lm", False), ("lm", True), ("resnet50_v2", False)])
def test_budget_below_what_can_be_reached(name: str, fuse: bool) -> None:
    model = SMALL[name]()
    with pytest.raises(BudgetError, match="memory_budget of 1,000 bytes cannot be met") as caught:
        echo.plan(model.symbol, memory_budget=1000, fuse=fuse, **model.shapes)
    reachable = least(str(caught.value))
    assert caught.value.reachable == reachable
    assert caught.value.budget == 1000
    assert re.search(r"Held at that peak: weights [\d.]+ [kM]B", str(caught.value))
    stock = echo.plan(model.symbol, max_overhead=0.0, **model.shapes).before.total
    assert reachable < stock
    plan = echo.plan(model.symbol, memory_budget=reachable, fuse=fuse, **model.shapes)
    assert plan.after.total <= reachable
    values = random_values(model)
    optimized = echo.optimize(model.symbol, memory_budget=reachable, fuse=fuse)
    expected = train(bind(model.symbol, values, model.grad_req()), steps=2)
    compare = assert_close if fuse else assert_same
    compare(train(bind(optimized, values, model.grad_req()), steps=2), expected)


@pytest.mark.parametrize("policy", ["none", "all", lambda problem: {}], ids=["none", "all", "function"])
def test_other_policies_know_nothing_of_what_searches_found(policy: Any) -> None:
    def refused(**options: Any) -> str:
        with pytest.raises(BudgetError) as caught:
            echo.plan(network(), fuse=False, **options, **SHAPES)
        return str(caught.value)

    refused(memory_budget=1000)  # the search finds the fewest bytes, which the next budget remembers
    text = refused(memory_budget=0.5, policy=policy)
    assert re.search(r"cannot be met with policy='\S+': the least that can be reached is", text)
    assert least(text) > least(refused(memory_budget=1000))


def test_error_names_what_keeps_operators_from_running_twice() -> None:
    with pytest.raises(BudgetError, match="cannot be met with heavy='never': the least"):
        echo.plan(network(), memory_budget=1000, heavy="never", **SHAPES)


def test_budget_is_checked_when_the_symbol_is_bound() -> None:
    optimized = echo.optimize(network(), memory_budget=1000)
    with pytest.raises(BudgetError, match="cannot be met"):
        optimized.simple_bind(mx.cpu(), grad_req="write", **SHAPES)
    with pytest.raises(BudgetError, match="cannot be met"):
        echo.optimize(network(), memory_budget=1000, **SHAPES)


def test_budgets_in_every_spelling_mean_the_same() -> None:
    model = SMALL["lm"]()
    stock = echo.plan(model.symbol, max_overhead=0.0, **model.shapes).before.total
    wanted = int(0.85 * stock)
    plans = [
        echo.plan(model.symbol, memory_budget=budget, **model.shapes)
        for budget in (wanted, float(wanted), str(wanted), f"{wanted}B", f" {wanted} b ", wanted / stock)
    ]
    assert all(plan.after.total <= wanted for plan in plans)
    assert {plan.after.total for plan in plans[:5]} == {plans[0].after.total}
    enough = echo.plan(model.symbol, memory_budget="1TB", **model.shapes)
    assert enough.overhead == 0.0
    assert echo.plan(model.symbol, memory_budget=1.0, **model.shapes).overhead == 0.0


def test_budget_that_needs_no_plan_costs_nothing() -> None:
    plan = echo.plan(network(), memory_budget="1GB", **SHAPES)
    assert plan.recomputed == ()


@pytest.mark.parametrize("policy", ["all", lambda problem: problem.splits(problem.candidates)], ids=["all", "own"])
def test_policy_that_exceeds_the_bound_of_the_user_raises_option_error(policy: Any) -> None:
    case = any_case("lm")
    with pytest.raises(OptionError, match=r"policy .*: expected recomputation of at most 1\.0% of a step"):
        select(case, policy=policy, max_overhead=0.01)
    assert select(case, policy=policy).seconds > 0.01 * costs_of(case.training).step_seconds
    assert select(case, policy=policy, max_overhead=None).seconds > 0
