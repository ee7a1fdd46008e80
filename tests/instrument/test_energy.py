"""Tests of `echo.instrument.energy`: nvml; rapl."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from echo.instrument import energy
from echo.instrument.energy import Gpus, Polled, Rapl


class Nvml:
    """Two GPUs on a bus; ``lacks`` are the functions that answer with an error."""

    class NVMLError(Exception):
        pass

    def __init__(self, *lacks: str) -> None:
        self.lacks = set(lacks)
        self.millijoules = {b"0000:01:00.0": 1000, b"0000:02:00.0": 5000}
        self.open = False

    def _answer(self, name: str) -> None:
        if name in self.lacks:
            raise self.NVMLError("Not Supported")

    def nvmlInit(self) -> None:
        self._answer("init")
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: bytes) -> bytes:
        if bus_id not in self.millijoules:
            raise self.NVMLError("Not Found")
        return bus_id

    def nvmlDeviceGetMemoryInfo(self, handle: bytes) -> Any:
        self._answer("memory")
        return SimpleNamespace(used=3 if handle == b"0000:01:00.0" else 4)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: bytes) -> int:
        self._answer("energy")
        return self.millijoules[handle]

    def nvmlDeviceGetPowerUsage(self, handle: bytes) -> int:
        self._answer("power")
        return 50_000


BOTH = ("0000:01:00.0", "0000:02:00.0")


def test_counters_of_energy() -> None:
    nvml = Nvml()
    gpus, one = Gpus(nvml, BOTH), Gpus(nvml, BOTH[1:])
    assert (gpus.bytes(), one.bytes()) == (7, 4)
    assert (gpus.joules(), one.joules()) == (6.0, 5.0)
    nvml.millijoules[b"0000:01:00.0"] += 250
    assert (gpus.joules(), one.joules()) == (6.25, 5.0)
    nvml.lacks |= {"energy", "memory"}  # the device fell off the bus
    assert (gpus.bytes(), gpus.joules()) == (None, None)
    gpus.close()
    assert not nvml.open


def test_gpu_without_energy_counter_sums_its_power() -> None:
    before = threading.active_count()
    gpus = Gpus(Nvml("energy"), BOTH)
    assert threading.active_count() == before + 1
    first, second = gpus.joules(), gpus.joules()
    assert first is not None
    assert second is not None
    assert 0 <= first <= second
    gpus.close()
    assert threading.active_count() == before


def test_gpu_without_energy_and_power_says_why() -> None:
    gpus = Gpus(Nvml("energy", "power"), BOTH)
    assert gpus.joules() is None
    assert gpus.bytes() == 7
    assert gpus.why_no_energy == "GPU energy: NVML says neither energy nor power: Not Supported"


@pytest.mark.parametrize("nvml", [Nvml("init"), Nvml("memory")], ids=["no driver", "no permission"])
def test_an_nvml_that_does_not_answer(nvml: Nvml) -> None:
    with pytest.raises(LookupError, match="GPU memory and energy: NVML does not answer: Not Supported"):
        Gpus(nvml, BOTH)


def test_power_becomes_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    now, watts = [0.0], [10.0]
    monkeypatch.setattr("echo.instrument.energy.time.monotonic", lambda: now[0])
    polled = Polled(lambda: watts[0], interval=1000.0)
    now[0], watts[0] = 2.0, 30.0
    assert polled.joules() == 40.0, "20 W on the average"
    now[0] = 3.0
    assert polled.joules() == 70.0
    polled.close()


def test_power_that_fails_ends_it() -> None:
    def fails() -> float:
        if calls:
            raise OSError("gone")
        calls.append(1)
        return 1.0

    calls: list[int] = []
    polled = Polled(fails, interval=0.001)
    polled._thread.join()
    assert polled.joules() is None
    polled.close()


def zone(folder: Path, name: str, kind: str, microjoules: int, most: int = 999_999) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "name").write_text(kind + "\n")
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{most}\n")
    return folder / name / "energy_uj"


def test_packages_are_summed_and_counters_begin_again(tmp_path: Path) -> None:
    first, second = zone(tmp_path, "intel-rapl:0", "package-0", 900_000), zone(tmp_path, "intel-rapl:1", "package-1", 5)
    part, system = zone(tmp_path, "intel-rapl:0:0", "core", 0), zone(tmp_path, "intel-rapl:2", "psys", 0)
    counter = Rapl(tmp_path)
    assert counter.joules() == 0.0
    first.write_text("100000")  # after its end, 1,000,000 values later
    second.write_text("300005")
    part.write_text("7777")
    system.write_text("8888")
    assert counter.joules() == pytest.approx(0.5)
    first.write_text("200000")
    assert counter.joules() == pytest.approx(0.6)
    first.unlink()
    assert counter.joules() is None


def test_unreadable_counter_raises_with_the_command_that_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1)

    def refused(_: Path) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(energy, "_number", refused)
    with pytest.raises(LookupError, match=r"may not read it; to allow it: sudo chmod a\+r .*energy_uj$"):
        Rapl(tmp_path)


@pytest.mark.parametrize("kind", ["nowhere", "empty", "no number"])
def test_missing_counters_raise_lookup_error(kind: str, tmp_path: Path) -> None:
    if kind == "no number":
        zone(tmp_path, "intel-rapl:0", "package-0", 1).write_text("much")
    with pytest.raises(LookupError, match=r"^CPU energy: the processor's counters \(RAPL\) are not there"):
        Rapl(tmp_path / "nowhere" if kind == "nowhere" else tmp_path)
