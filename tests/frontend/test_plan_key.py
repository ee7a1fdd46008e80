"""Tests of `echo.frontend.plan_key`: device; key."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest

from benchmarks.models import SMALL
from echo.estimators.footprint import AUXILIARY, GRADIENTS, INPUTS, WEIGHTS
from echo.frontend import plan_key as module
from echo.frontend.plan_key import device_key, family, gpu_text, plan_key, static_bytes
from echo.frontend.symbols import Binding, graph_of, infer_binding
from echo.ir.training_graph import Runner


def test_the_device_key_names_what_times_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    key = device_key(mx.cpu())
    assert key == device_key(mx.cpu())
    assert mx.__version__ in key
    assert "cores" in key
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert device_key(mx.cpu()) != key


@pytest.mark.parametrize("name", ["MXNET_CUDA_ALLOW_TENSOR_CORE", "NVIDIA_TF32_OVERRIDE"])
def test_settings_that_change_what_a_step_runs_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name, raising=False)
    key = device_key(mx.cpu())
    monkeypatch.setenv(name, "0")
    assert device_key(mx.cpu()) != key
    monkeypatch.setenv(name, "")  # the same as not set
    assert device_key(mx.cpu()) == key


class Cuda:
    """The functions of CUDA's libraries; GPU 0 of this process is another one to NVML."""

    def __init__(self, names: list[bytes], driver: int = 12020, runtime: int = 11020, cudnn: int = 8100) -> None:
        self.names, self.driver, self.runtime, self.cudnn = names, driver, runtime, cudnn

    def cudaGetDeviceProperties(self, properties: Any, number: int) -> int:
        if number >= len(self.names):
            return 101
        properties.value = self.names[number]
        return 0

    def cudaDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.driver
        return 0

    def cudaRuntimeGetVersion(self, version: Any) -> int:
        version._obj.value = self.runtime
        return 0

    def cudnnGetVersion(self) -> int:
        return self.cudnn


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No NVML, and the driver's file at this path, where there is none yet."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(module, "DRIVER_FILE", tmp_path / "version")
    return tmp_path / "version"


def test_a_gpu_is_named_by_cuda_in_its_own_numbering(no_driver: Path) -> None:
    cuda = Cuda([b"NVIDIA T4", b"NVIDIA A10G"])
    assert gpu_text(cuda, 0) == "NVIDIA T4, driver ?, CUDA 12020/11020, cuDNN 8100"
    assert gpu_text(cuda, 1).startswith("NVIDIA A10G, ")
    assert gpu_text(cuda, 2).startswith("?, "), "no such device"


@pytest.mark.parametrize("changed", [{"driver": 12040}, {"runtime": 11070}, {"cudnn": 8204}])
def test_versions_make_another_device(changed: dict[str, int], no_driver: Path) -> None:
    assert gpu_text(Cuda([b"NVIDIA T4"], **changed), 0) != gpu_text(Cuda([b"NVIDIA T4"]), 0)


def test_the_driver_says_which_it_is(no_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n")
    assert "driver 535.104.05, " in gpu_text(Cuda([b"NVIDIA T4"]), 0)
    no_driver.write_text("nothing\n")
    assert "driver ?, " in gpu_text(Cuda([b"NVIDIA T4"]), 0)
    nvml = types.ModuleType("pynvml")
    nvml.__dict__.update(nvmlInit=lambda: None, nvmlShutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    for version in (b"550.54.14", "550.54.14"):
        nvml.__dict__["nvmlSystemGetDriverVersion"] = lambda version=version: version
        assert "driver 550.54.14, " in gpu_text(Cuda([b"NVIDIA T4"]), 0)
    no_driver.write_text("NVRM version: 535.104.05\n")
    nvml.__dict__["nvmlSystemGetDriverVersion"] = lambda: 1 // 0
    assert "driver 535.104.05, " in gpu_text(Cuda([b"NVIDIA T4"]), 0), "where NVML fails, the file is there"


def test_gpu_without_cuda_libraries_has_no_name(no_driver: Path) -> None:
    assert gpu_text(object(), 0) == "?, driver ?, CUDA ?/?, cuDNN ?"
    assert device_key(mx.gpu(0)) != device_key(mx.cpu())


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
    binds = [(binding(), Runner.EXECUTOR), (half, Runner.EXECUTOR), (binding(), Runner.DYNAMIC)]
    one, other, block = (family(GRAPH, given, "cpu", runner) for given, runner in binds)
    assert one == other != block
    assert len({plan_key(GRAPH, given, "cpu", runner).fingerprint for given, runner in binds}) == 3


@pytest.mark.parametrize(("device", "differs"), [("cpu", False), ("gpu", True)])
def test_a_plan_for_a_gpu_holds_for_one_setting_of_pointwise_fusion(
    device: str, differs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for value in ("0", "1"):
        monkeypatch.setenv("MXNET_USE_FUSION", value)
        keys.append(plan_key(GRAPH, binding(), device).fingerprint)
    assert (keys[0] != keys[1]) == differs


@pytest.mark.parametrize(("device", "differs"), [("cpu", True), ("gpu", False)])
def test_a_plan_holds_for_one_number_of_generators(device: str, differs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With only one, kernels draw on CPUs instead of MXNet's Dropout."""
    keys = []
    for value in ("1", "2"):
        monkeypatch.setenv("MXNET_CPU_PARALLEL_RAND_COPY", value)
        keys.append(plan_key(GRAPH, binding(), device).fingerprint)
    assert (keys[0] != keys[1]) == differs


def test_a_plan_of_a_block_holds_for_one_number_of_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(runner: str, spaces: str) -> dict[str, str]:
        monkeypatch.setenv("MXNET_CPU_TEMP_COPY", spaces)
        return dict(plan_key(GRAPH, binding(), "cpu", runner).settings)

    assert settings(Runner.DYNAMIC, "1") == {"MXNET_CPU_TEMP_COPY": "1"}, "of 32 spaces workspaces may fill each"
    assert settings(Runner.DYNAMIC, "4") == settings(Runner.EXECUTOR, "1") == {}
