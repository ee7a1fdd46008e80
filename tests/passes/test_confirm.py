"""MXNet's own planner has the last word: less memory, and gradients added up as in the user's graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echo.ir.training_graph import DYNAMIC, MemoryPool
from echo.passes.confirm import Confirm, Confirmed
from echo.passes.request import Request
from echo.passes.rewrite import Rewritten
from echo.passes.rules import RULES
from echo.plans.options import Options
from tests.conftest import Case, FakeFrontend, model_case, special_case


def confirmed(case: Case, planned: int, match_range: int | None = None, **options: object) -> Confirmed:
    asked: list[int] = []

    def oracle(graph: object, value: int) -> int:
        asked.append(value)
        return planned

    frontend = FakeFrontend(case.training, planned=oracle)
    request = Request(case.graph, Options.of(**options), frontend)
    found = Confirm().confirmed(request, case.training, Rewritten(case.graph, match_range))
    assert asked == [match_range or frontend.match_range], "the oracle is asked once, as the graph will be bound"
    return found


def test_less_memory_is_accepted() -> None:
    case = model_case("nmt")
    assert confirmed(case, case.training.planned_bytes - 1) == Confirmed(case.training.planned_bytes - 1, True)
    assert confirmed(case, 5, match_range=2).accepted


@pytest.mark.parametrize("more", [0, 1])
def test_no_gain_is_refused(more: int) -> None:
    case = model_case("nmt")
    found = confirmed(case, case.training.planned_bytes + more)
    assert not found.accepted
    assert found.planned_bytes == case.training.planned_bytes
    assert found.reason == "nothing to gain"


def test_a_small_gain_is_refused_where_frees_come_late() -> None:
    case = model_case("nmt")
    late = MemoryPool(4096, 2 << 20, powers=False, late=3)
    for pool, least in ((None, 0.0), (replace(late, late=0), 0.0), (late, RULES.late_gain)):
        training = replace(case.training, runner=DYNAMIC, pool=pool)
        pooled = replace(case, training=training)
        for part in (0.99, 0.95, 0.5):
            planned = int(part * training.planned_bytes)
            result = confirmed(pooled, planned)
            assert result.accepted == (1 - part > least)
            assert result.accepted or "frees arrays late" in result.reason
            assert confirmed(pooled, planned, memory_budget=0.9).accepted, "the user asks for memory"
            assert confirmed(pooled, planned, recompute="Activation").accepted


def test_what_the_user_insists_on_is_bound_though_it_costs_memory() -> None:
    case = model_case("nmt")
    found = confirmed(case, case.training.planned_bytes + 1, recompute="Activation")
    assert found == Confirmed(case.training.planned_bytes + 1, True)


def test_gradients_that_would_add_up_otherwise_are_refused() -> None:
    """A matrix product that accumulates in place may round differently from one that is added."""
    case = special_case("many readers")
    assert case.training.accumulations, "the example has gradients of more than eight readers"
    flipped = tuple(not one for one in case.training.accumulations)
    frontend = FakeFrontend(replace(case.training, accumulations=flipped), planned=lambda graph, match_range: 1)
    found = Confirm().confirmed(Request(case.graph, Options(), frontend), case.training, Rewritten(case.graph, None))
    assert not found.accepted
    assert "add up gradients" in found.reason
