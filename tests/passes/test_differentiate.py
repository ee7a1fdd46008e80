"""The first pass: the frontend's training graph, as stock works in place, with gradients that read less on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

import pytest

from echo.estimators.inplace import as_stock, with_kept
from echo.ir.training_graph import TrainingGraph
from echo.passes.differentiate import Differentiate
from echo.passes.request import Request
from echo.plans.options import Options
from tests.conftest import Case, FakeFrontend, case_of, model_case, special_case, with_dropout


@dataclass
class Asked(FakeFrontend):
    """Keeps what it is asked to implement."""

    asked: list[Mapping[int, str]] = field(default_factory=list)

    def implemented(self, training: TrainingGraph, implementations: Mapping[int, str]) -> TrainingGraph:
        self.asked.append(implementations)
        return training


@pytest.fixture(scope="module")
def case() -> Case:
    return case_of(with_dropout(), {"data": (8, 20), "label": (8,)})


def run(case: Case, **facts: object) -> tuple[TrainingGraph, Asked]:
    frontend = Asked(case.training, **facts)  # type: ignore[arg-type]
    return Differentiate().run(Request(case.graph, Options(), frontend)), frontend


def test_gradients_read_less_on_a_cpu(case: Case) -> None:
    found, frontend = run(case)
    (chosen,) = frontend.asked
    users = {case.graph.nodes[user].op for user in chosen}
    assert "Activation" in users or "sigmoid" in users
    assert found.outputs == case.training.outputs


def test_on_a_gpu_those_of_activations_are_mxnets(case: Case) -> None:
    found, frontend = run(case, device="gpu", onednn=False)
    assert not frontend.asked
    assert found == with_kept(as_stock(case.training, "gpu"), "gpu")


def test_on_a_gpu_convolutions_that_share_a_map_have_their_gradients_in_two_nodes() -> None:
    branches = model_case("inception_v3")
    for cudnn in (True, False):
        _, frontend = run(branches, device="gpu", onednn=False, cudnn=cudnn)
        chosen = {branches.graph.nodes[user].op for rules in frontend.asked for user in rules}
        assert ("Convolution" in chosen) == cudnn


def test_without_the_hook_the_graph_is_what_the_frontend_says(case: Case) -> None:
    found, frontend = run(case, hook=False)
    assert found is case.training
    assert not frontend.asked


def test_without_gains_nobody_is_asked() -> None:
    _, frontend = run(special_case("two outputs"), onednn=False)
    assert all(frontend.asked), "never with nothing"
