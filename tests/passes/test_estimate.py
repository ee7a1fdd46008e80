"""How long measuring may take: a second, nothing for a graph of a known model, and never half of what is left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from echo.estimators.overhead import Overhead
from echo.ir.training_graph import TrainingGraph
from echo.passes.estimate import EstimateOverhead
from echo.passes.request import Request
from echo.plans.options import Options
from echo.policies.problem import WarmStart
from echo.system.process import Deadline
from tests.conftest import FakeFrontend, model_case, overhead_of

CASE = model_case("lm")


@dataclass
class Timed(FakeFrontend):
    """Keeps the limits that it is given."""

    limits: list[tuple[float, float]] = field(default_factory=list)

    def overhead(self, training: TrainingGraph, time_limit: float, clock_limit: float) -> Overhead:
        self.limits.append((time_limit, clock_limit))
        return overhead_of(training)


@pytest.mark.parametrize(
    ("known", "seconds", "left", "work", "clock"),
    [
        (False, 90.0, 90.0, 1.0, 30.0),
        (True, 90.0, 90.0, 0.0, 30.0),
        (False, 0.9, 0.75, 1.0, 0.2),  # 0.15 s stay for what follows, as long as everything took; a third of the rest
        (False, 0.9, 0.6, 1.0, 0.1),  # 0.3 s stay, a third of all
        (False, 0.9, 0.0, 1.0, 0.0),
    ],
)
def test_limits(
    known: bool, seconds: float, left: float, work: float, clock: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echo.system.process.time", SimpleNamespace(monotonic=lambda: 0.0))
    frontend = Timed(CASE.training)
    request = Request(CASE.graph, Options(), frontend, warm_start=WarmStart(()) if known else None)
    assert EstimateOverhead().run(replace(request, deadline=Deadline(seconds, left, seconds)), CASE.training).seconds
    assert frontend.limits == [pytest.approx((work, clock))]
