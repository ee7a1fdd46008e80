"""What a plan would cost with one decision turned around, on a framework that measures nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from echo.estimators.cost_model import CostModel
from echo.ir.training_graph import TrainingGraph
from echo.passes.request import Request
from echo.pipeline import plan
from echo.planning.what_if import WhatIf
from echo.plans.decisions import RECOMPUTE, STASH, Decision
from echo.plans.options import Options
from tests.support.cases import model_case
from tests.support.fake_frontend import FakeFramework
from tests.support.planning import costs_of

CASE = model_case("lm")


@dataclass
class Framework(FakeFramework):
    """Every operator takes as long as any other; plans are confirmed; nothing is fused."""

    why_no_fusion: str = "here nothing is fused"
    adds: bool = False

    def costs(self, training: TrainingGraph, time_limit: float, clock_limit: float) -> CostModel:
        return costs_of(training)

    def apply_gradient_rules(self, training: TrainingGraph, gradient_rules: Any) -> TrainingGraph:
        return training

    def on(self, graph: Any) -> Framework:
        return self


@pytest.fixture(scope="module")
def what_if() -> WhatIf:
    request = Request(CASE.graph, Options(fuse=False, max_overhead=None), Framework(CASE.training))
    return WhatIf(request, plan(request).plan)


def decided(what_if: WhatIf, action: str) -> list[Decision]:
    return [decision for decision in what_if.plan.decisions if decision.action == action]


def test_the_plans_own_choice_is_what_its_marks_say(what_if: WhatIf) -> None:
    assert what_if.plan.recomputed
    assert np.count_nonzero(what_if._choice) >= len(what_if.plan.recomputed)
    assert what_if._unchanged.seconds == pytest.approx(what_if.plan.overhead_seconds)


def test_stashing_instead_takes_no_more_time(what_if: WhatIf) -> None:
    flips = [what_if(decision) for decision in decided(what_if, RECOMPUTE)]
    costs = [flip.alone for flip in flips if flip.alone is not None]
    assert costs
    assert all(cost.seconds <= what_if.plan.overhead_seconds + 1e-12 for cost in costs)
    assert any(cost.seconds < what_if.plan.overhead_seconds for cost in costs)
    assert any(cost.planned > what_if.plan.after.planned for cost in costs)


def test_recomputing_instead_takes_no_less_time(what_if: WhatIf) -> None:
    costs = [flip.alone for flip in map(what_if, decided(what_if, STASH)) if flip.alone is not None]
    assert all(cost.seconds >= what_if.plan.overhead_seconds - 1e-12 for cost in costs)


def test_the_class_is_turned_around_together(what_if: WhatIf) -> None:
    flips = [what_if(decision) for decision in decided(what_if, RECOMPUTE)]
    together = [flip for flip in flips if flip.together is not None]
    assert together
    for flip in together:
        assert flip.alike > 0
        assert flip.together.seconds <= flip.alone.seconds + 1e-12  # type: ignore[union-attr]


def test_unanswerable_question_has_a_note(what_if: WhatIf) -> None:
    some = what_if.plan.decisions[0]
    assert what_if(replace(some, node=10**6)).note == "not a node of the symbol: it is never recomputed"
    refused = [what_if(decision).note for decision in decided(what_if, STASH)]
    assert any(note.startswith("it cannot be recomputed: ") for note in refused)
