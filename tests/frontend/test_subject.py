"""The key of a bind, the family that it belongs to, and the bytes of its arrays."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

from benchmarks.models import SMALL
from echo.estimators.footprint import AUXILIARY, GRADIENTS, INPUTS, WEIGHTS
from echo.frontend.subject import family, static_bytes, subject
from echo.frontend.symbols import Binding, graph_of, infer_binding
from echo.ir.training_graph import DYNAMIC, EXECUTOR

MODEL = SMALL["resnet50_v2"]()
GRAPH = graph_of(MODEL.symbol)


def binding(**changes: Any) -> Binding:
    return infer_binding(MODEL.symbol, {**MODEL.shapes, **changes}, None, MODEL.grad_req())


def test_static_bytes_by_kind() -> None:
    arguments = dict(zip(MODEL.symbol.list_arguments(), infer_binding(MODEL.symbol, MODEL.shapes).arg_shapes))
    found = static_bytes(binding())
    given = sum(4 * mx.nd.empty(shape).size for name, shape in arguments.items() if name in MODEL.shapes)
    trained = sum(4 * mx.nd.empty(shape).size for name, shape in arguments.items() if name not in MODEL.shapes)
    assert (found[INPUTS], found[WEIGHTS], found[GRADIENTS]) == (given, trained, trained)
    assert found[AUXILIARY] > 0


def test_families_are_of_one_model_and_subjects_of_one_bind() -> None:
    half = binding(**{name: (shape[0] // 2, *shape[1:]) for name, shape in MODEL.shapes.items()})
    binds = [(binding(), EXECUTOR), (half, EXECUTOR), (binding(), DYNAMIC)]
    one, other, block = (family(GRAPH, given, "cpu", runner) for given, runner in binds)
    assert one == other != block
    assert len({subject(GRAPH, given, "cpu", runner).fingerprint for given, runner in binds}) == 3


@pytest.mark.parametrize(("device", "differs"), [("cpu", False), ("gpu", True)])
def test_a_plan_for_a_gpu_holds_for_one_setting_of_pointwise_fusion(
    device: str, differs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for value in ("0", "1"):
        monkeypatch.setenv("MXNET_USE_FUSION", value)
        keys.append(subject(GRAPH, binding(), device).fingerprint)
    assert (keys[0] != keys[1]) == differs


@pytest.mark.parametrize(("device", "differs"), [("cpu", True), ("gpu", False)])
def test_a_plan_holds_for_one_number_of_generators(device: str, differs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one alone, kernels draw on CPUs in the place of MXNet's Dropout."""
    keys = []
    for value in ("1", "2"):
        monkeypatch.setenv("MXNET_CPU_PARALLEL_RAND_COPY", value)
        keys.append(subject(GRAPH, binding(), device).fingerprint)
    assert (keys[0] != keys[1]) == differs


def test_a_plan_of_a_block_holds_for_one_number_of_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(runner: str, spaces: str) -> dict[str, str]:
        monkeypatch.setenv("MXNET_CPU_TEMP_COPY", spaces)
        return dict(subject(GRAPH, binding(), "cpu", runner).settings)

    assert settings(DYNAMIC, "1") == {"MXNET_CPU_TEMP_COPY": "1"}, "of 32 spaces workspaces may fill each"
    assert settings(DYNAMIC, "4") == settings(EXECUTOR, "1") == {}
