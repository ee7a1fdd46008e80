"""When the plan with compute-heavy operators that run twice takes the place of the one without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from echo.passes import choose
from echo.passes.patterns.apply import Fused
from echo.passes.request import Request
from echo.passes.variant import Variant
from echo.pipeline import BASES, PIPELINE, REFINEMENTS
from echo.plans.options import Options
from tests.support.cases import model_case
from tests.support.fake_frontend import FakeFramework

CASE = model_case("lm")
STAGES = choose.Stages(BASES, PIPELINE, REFINEMENTS)


def planned(total: int, part: float, timed: bool = True) -> Variant:
    """A plan whose recomputation takes this part of a step."""
    plan = SimpleNamespace(after=SimpleNamespace(total=total), step_seconds=1.0, overhead_seconds=part)
    value: Any = SimpleNamespace(plan=plan, timed=timed, splits={})
    return Variant(Fused(CASE.graph), None, value)


@pytest.mark.parametrize(
    ("deeper", "taken"),
    [
        pytest.param(planned(80, 0.19), True, id="smaller and in time"),
        pytest.param(planned(100, 0.0), False, id="as large"),
        pytest.param(planned(80, 0.21), False, id="beyond the bound on a step"),
        pytest.param(planned(80, 0.19, timed=False), False, id="of unknown time"),
        pytest.param(None, False, id="not planned"),
    ],
)
def test_smaller_plan_within_the_bound_is_taken(
    deeper: Variant | None, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    light = planned(100, 0.1)
    request = Request(CASE.graph, Options.of(max_time=1.2), FakeFramework(CASE.training))
    monkeypatch.setattr(Variant, "may_deepen", lambda *_: True)
    monkeypatch.setattr(Variant, "deeper_than", lambda found, _: found)
    monkeypatch.setattr(choose, "plan_variant", lambda *_: deeper)
    assert choose._deepened(request, STAGES, light) is (deeper if taken else light)
