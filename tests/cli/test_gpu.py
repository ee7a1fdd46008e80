"""What `mxecho doctor` says of drivers and GPUs; `tests/fake_gpu/test_doctor.py` asks a fake one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Sequence

import pytest

from echo.cli import gpu
from echo.cli.fact import FINE, OFF, Fact
from echo.system.cuda import Driver, Gpu

PTX = Path(__file__).resolve().parents[2] / "echo" / "kernels" / "cuda"


@pytest.mark.parametrize(
    ("wheel", "capability", "runs"),
    [
        ("mxnet-cu112", (8, 0), True),
        ("mxnet-cu112", (7, 5), True),  # code of 7.0
        ("mxnet-cu117", (8, 9), True),  # code of 8.6
        ("mxnet-cu117", (9, 0), False),
        ("mxnet-cu112", (3, 5), False),
        ("mxnet-cu102", (3, 5), True),
        ("mxnet-cu102", (8, 0), False),
        ("mxnet-cu110", (8, 0), None),
        ("mxnet", (8, 0), None),
    ],
)
def test_which_devices_a_wheel_has_code_for(wheel: str, capability: tuple[int, int], runs: bool | None) -> None:
    assert gpu.has_code(wheel, capability) is runs


def test_what_the_ptx_needs() -> None:
    """PTX of version 6.0 came with CUDA 9.0."""
    texts = [path.read_text(encoding="utf-8") for path in PTX.glob("*.ptx")]
    assert texts
    assert {re.findall(r"^\.version (\S+)", text, re.MULTILINE)[0] for text in texts} == {"6.0"}
    assert gpu.PTX_CUDA == (9, 0)
    targets = {re.findall(r"^\.target sm_(\d)(\d)", text, re.MULTILINE)[0] for text in texts}
    assert targets == {tuple(map(str, gpu.PTX_CAPABILITY))}


def facts(
    monkeypatch: pytest.MonkeyPatch, found: Driver, why_not: Sequence[str] | None, wheel: str = "mxnet-cu112"
) -> dict[str, Fact]:
    monkeypatch.setattr(gpu, "driver", lambda: found)
    return {fact.name: fact for fact in gpu.gpus(wheel, why_not)}


def device(major: int, minor: int) -> Gpu:
    return Gpu("Some GPU", 16 << 30, (major, minor))


def test_a_gpu_that_runs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = facts(monkeypatch, Driver((12, 4), "550.54.14", (device(8, 6),)), [""])
    assert found["driver"] == Fact("GPU", "driver", "550.54.14", "runs CUDA up to 12.4")
    assert found["gpu(0)"].value == "Some GPU, 17.2 GB, compute capability 8.6"
    assert found["gpu(0) MXNet has code"].value is found["gpu(0) runs echo's kernels"].value is True
    assert {fact.state for fact in found.values()} == {FINE}


def test_a_gpu_that_is_too_new_for_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    found = facts(monkeypatch, Driver((12, 4), "", (device(9, 0),)), [""])
    assert found["gpu(0) MXNet has code"] == Fact(
        "GPU", "gpu(0) MXNet has code", False, "the wheel has code for 5.0, 6.0, 7.0, 8.0, 8.6", OFF
    )


def test_a_gpu_beside_a_wheel_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = facts(monkeypatch, Driver((12, 4), "", (device(8, 0),)), [], "mxnet")
    assert "pip install mxnet-cu112" in found["gpu(0) MXNet has code"].remark
    assert found["gpu(0) runs echo's kernels"].remark == "MXNet does not see the device"


def test_kernels_that_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Driver((8, 0), "390.1", (device(8, 0), device(3, 5)))
    found = facts(monkeypatch, two, ["the driver refuses them", ""])
    assert found["driver"].state == OFF
    assert found["driver"].remark == "too old for echo's kernels; runs CUDA up to 8.0"
    assert found["gpu(0) runs echo's kernels"].remark == "the driver refuses them"
    assert found["gpu(1) runs echo's kernels"].remark == "they need compute capability 5.0"


def test_where_mxnet_could_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = facts(monkeypatch, Driver((12, 4), "", (device(8, 0),)), None)
    assert "gpu(0) runs echo's kernels" not in found


def test_without_a_driver_or_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts(monkeypatch, Driver((12, 4), "", ()), [])["devices"].value == 0

    def absent() -> Driver:
        raise LookupError("there is no NVIDIA driver: no such file")

    monkeypatch.setattr(gpu, "driver", absent)
    *_, fact = gpu.gpus("mxnet", [])
    assert fact == Fact("GPU", "driver", "none", "there is no NVIDIA driver: no such file")
