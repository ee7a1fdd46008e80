"""The facts of a request apart from the graph: failures, lateness, and the bytes that are always there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echo.errors import BudgetError, OptionError
from echo.estimators.footprint import INPUTS, OPTIMIZER, WEIGHTS
from echo.passes.request import Request
from echo.passes.rules import RULES
from echo.plans.decisions import Note, NoteKind
from echo.plans.options import Options
from echo.policies.problem import WarmStart
from echo.system.process import Deadline
from tests.support.cases import model_case
from tests.support.fake_frontend import FakeFramework
from tests.support.planning import costs_of

CASE = model_case("lm")


def request(deadline: Deadline | None = None, **options: Any) -> Request:
    framework = FakeFramework(CASE.training, static={WEIGHTS: 100, INPUTS: 7})
    more = {} if deadline is None else {"deadline": deadline}
    return Request(CASE.graph, Options.of(**options), framework, **more)  # type: ignore[arg-type]


def test_an_error_costs_that_way_alone_and_a_line() -> None:
    made = request()
    with made.fallback_scope("layers"):
        raise ValueError("first\nlast")
    assert made.notes == [Note("planned without layers, which failed: ValueError: first last", NoteKind.FAILED)]
    with made.fallback_scope("cells"):
        pass
    assert len(made.notes) == 1


def test_a_budget_is_no_fault_and_whoever_is_strict_sees_all() -> None:
    with pytest.raises(BudgetError), request().fallback_scope("layers"):
        raise BudgetError(1, 2, "all")
    with pytest.raises(ValueError, match="all of it"), request(strict=True).fallback_scope("layers"):
        raise ValueError("all of it")


@pytest.mark.parametrize("strict", [False, True])
def test_options_that_one_way_cannot_meet_are_no_fault(strict: bool) -> None:
    made = request(strict=strict)
    with made.fallback_scope("layers"):
        raise OptionError("recompute: no")
    assert made.notes == [Note("planned without layers: recompute: no")]


def test_bound_on_a_step_holds_by_estimates_for_further_shapes() -> None:
    """Of which nothing is measured any more."""
    costs = replace(costs_of(CASE.training), measured=0)
    made = request(max_time=1.5)
    assert made.most_recomputation(costs) == pytest.approx(0.1 * costs.step_seconds), "the default bound, in its place"
    assert request(max_time=1.5, max_overhead=None).most_recomputation(costs) is None
    assert made.most_recomputation(replace(costs, measured=1)) == pytest.approx(0.5 * costs.step_seconds)
    further = replace(made, warm_start=WarmStart(()))
    assert further.most_recomputation(costs) == pytest.approx(0.5 * costs.step_seconds)


def test_default_bound_leaves_room_for_the_host_and_for_errors_of_the_prediction() -> None:
    """What the host does in each step is some per cent of steps of milliseconds, whatever runs again."""
    costs = replace(costs_of(CASE.training), measured=1, step_seconds=2e-3)
    made = request()
    assert made.most_recomputation(costs) == pytest.approx((1 - RULES.unsure) * 0.1 * 2e-3 - RULES.host)
    assert made.most_recomputation(replace(costs, step_seconds=1e-3)) == 0.0
    assert made.most_recomputation(replace(costs, measured=0)) == pytest.approx(0.1 * 2e-3), "a rough estimate anyhow"
    assert request(max_overhead=0.1).most_recomputation(costs) == pytest.approx(0.1 * 2e-3), "an own bound is obeyed"


def test_late_is_late_whoever_notices() -> None:
    assert not request().is_late
    assert request(Deadline(3.0, 0.0, 3.0)).is_late
    made = request(Deadline(2.5, 1e12, 2.5))
    assert not made.is_late
    for _ in range(2):
        made.note_late()
    text = "planning stopped, to end in max_planning=2.5 s: the best plan so far is taken"
    assert made.notes == [Note(text, NoteKind.LATE)]
    assert made.is_late
    within = request(Deadline(2.5, 1e12, 2.5), memory_budget="50%")
    within.note_late()
    assert str(within.notes[0]).startswith("planning for memory_budget=50% stopped, to end in max_planning=2.5 s")


@pytest.mark.parametrize(("states", "expected"), [(0, {}), (2, {OPTIMIZER: 200})])
def test_states_of_the_optimizer_are_as_large_as_the_weights(states: int, expected: dict[str, int]) -> None:
    assert request(optimizer_states=states).static == {WEIGHTS: 100, INPUTS: 7, **expected}
