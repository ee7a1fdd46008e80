"""The energy of steps, with a stand-in for NVML and a device whose steps take a second and 250 joules."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any, Iterator

import pytest

from benchmarks import gpu_energy
from benchmarks.gpu_clock import Clock
from benchmarks.gpu_energy import energy_rows
from benchmarks.gpu_sizes import Sizes


class Nvml(types.ModuleType):
    """As much of ``pynvml`` as is asked for."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.time = self.joules = 0.0
        self.refuses: set[str] = set()
        self.open, self.asked = False, b""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.refuses:
            raise self.NVMLError(name)
        return lambda *of: {
            "nvmlInit": lambda: setattr(self, "open", True),
            "nvmlShutdown": lambda: setattr(self, "open", False),
            "nvmlDeviceGetHandleByPciBusId": lambda bus_id: setattr(self, "asked", bus_id),
            "nvmlDeviceGetMemoryInfo": lambda _: None,
            "nvmlDeviceGetTotalEnergyConsumption": lambda _: int(self.joules * 1e3),
        }[name](*of)

    def step(self) -> None:
        self.time, self.joules = self.time + 1, self.joules + 250


class Machine:
    """A device that does nothing."""

    torch = None

    def bus_id(self) -> str:
        return "0000:65:00.0"

    def wait(self) -> None:
        pass


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    made = Nvml()

    def fails() -> Any:
        raise RuntimeError("no cuDNN here")

    forms = {"ours": lambda: made.step, "cudnn": fails, "unfused": lambda: made.step}
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(gpu_energy, "layer_arrays", lambda *_: ([], [], []))
    monkeypatch.setattr(gpu_energy, "_forms", lambda *_: forms)
    monkeypatch.setattr(gpu_energy, "tensor_float", lambda *_: contextlib.nullcontext())
    yield made
    assert not made.open


def rows(nvml: Nvml, seconds: float = 1000) -> list[dict[str, Any]]:
    return list(energy_rows(Machine(), Sizes(), Clock(seconds, lambda: nvml.time), 20))


def test_joules_of_a_step(nvml: Nvml) -> None:
    """A form that fails says so, and the others go on."""
    found = {row["form"]: row for row in rows(nvml)}
    assert nvml.asked == b"0000:65:00.0"
    assert (found["ours"]["step_joules"], found["ours"]["step_ms"], found["ours"]["watts"]) == (250, 1000, 250)
    assert (found["ours"]["H"], found["ours"]["B"], found["ours"]["T"]) == (512, 64, 50)
    assert found["cudnn"]["skipped"] == "RuntimeError: no cuDNN here"
    assert found["unfused"]["watts"] == 250


def test_forms_that_do_not_fit_are_left_out(nvml: Nvml) -> None:
    assert [row["form"] for row in rows(nvml, 1)] == ["ours"]


@pytest.mark.parametrize(
    ("refuses", "reason"),
    [
        ({"nvmlInit"}, "NVML does not answer: nvmlInit"),
        ({"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"}, "NVML says neither energy nor power"),
    ],
)
def test_where_nvml_does_not_say(nvml: Nvml, refuses: set[str], reason: str) -> None:
    nvml.refuses = refuses
    (row,) = rows(nvml)
    assert reason in row["skipped"]
    assert nvml.joules == 0


def test_a_counter_that_stops(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_energy.Gpus, "joules", lambda _: None)
    assert rows(nvml)[0]["skipped"] == "NVML does not say the energy any more"


def test_where_there_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (row,) = energy_rows(Machine(), Sizes(), Clock(10))
    assert "pynvml" in row["skipped"]
