"""What a recording measures here, and what it says where it cannot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest

from echo.runtime import meters
from echo.runtime.meters import Meters
from tests.recording.test_energy import Nvml, zone


class Features:
    """MXNet's list of its features, with CUDA."""

    def is_enabled(self, name: str) -> bool:
        return name == "CUDA"


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.runtime, "Features", Features)
    monkeypatch.setattr(meters, "bus_ids", lambda: ("0000:02:00.0",))


def test_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    monkeypatch.setattr(meters, "Rapl", lambda: meters_rapl(tmp_path))
    found = Meters()
    try:
        assert found.missing == []
        reading = found.read()
        assert reading.process > 2**20
        assert reading.storage == 0
        assert (reading.device, reading.gpu_joules, reading.cpu_joules) == (None, None, 0.0)
    finally:
        found.close()


def meters_rapl(folder: Path) -> Any:
    from echo.recording.energy import Rapl

    return Rapl(folder)


@pytest.mark.usefixtures("_gpu")
def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = Meters()
    reading = found.read()
    found.close()
    assert (reading.device, reading.gpu_joules) == (4, 5.0)
    assert reading.storage == 0, "nothing was allocated since"
    assert not nvml.open


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize(("nvml", "said"), [
    (Nvml("init"), "NVML does not answer: Not Supported"), (None, "pip install nvidia-ml-py"),
    (Nvml("energy", "power"), "GPU energy: NVML says neither energy nor power"),
], ids=["no driver", "no module", "no energy"])  # fmt: skip
def test_what_cannot_be_measured_is_said(nvml: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = Meters()
    found.close()
    assert [line for line in found.missing if said in line]
    assert found.read().gpu_joules is None


@pytest.mark.usefixtures("_gpu")
def test_no_device_is_nothing_to_speak_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "bus_ids", tuple)
    found = Meters()
    found.close()
    assert [line for line in found.missing if "GPU" in line] == []
