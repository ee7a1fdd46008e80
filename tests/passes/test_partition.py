"""The pass cuts at what is not light: segments of the light candidates, as `echo.policies.problem` makes them."""

from __future__ import annotations

from echo.ir.ops import spec
from echo.passes.candidates import FindCandidates
from echo.passes.partition import Partition
from echo.passes.request import Request
from echo.plans.options import Options
from echo.policies.problem import partition
from tests.conftest import FakeFrontend, model_case


def test_segments_are_of_light_candidates_alone() -> None:
    case = model_case("nmt")
    candidates = FindCandidates().run(Request(case.graph, Options(), FakeFrontend(case.training)), case.training)
    found = Partition().run(case.training, candidates)
    assert found == partition(case.training, candidates.light)
    assert found != partition(case.training, {**candidates.light, **candidates.heavy})
    assert any(spec(case.training.nodes[number].op).heavy for number in candidates.heavy)
