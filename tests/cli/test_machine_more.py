"""Tests of `echo.cli.machine`: extras; gpu; mxnet here; examine."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Sequence

import pytest

from echo.cli import machine
from echo.cli.machine import FINE, OFF, STOPS, Check
from echo.frontend.examine import Examined
from echo.system.cuda import Driver, Gpu
from tests.support import ptx
from tests.support.stub_libraries import mxnet, stub, wheels


def test_missing_extras_name_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise LookupError("CPU energy: this user may not read it; to allow it: sudo something")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(machine, "Rapl", refuse)
    checks = {check.name: check for check in machine.optional_dependencies()}
    assert [check.value for check in checks.values()] == [False] * 3
    assert checks["pages and pictures"].remark == "pip install 'mxnet-echo[report]'"
    assert checks["the policy ilp"].remark == "pip install 'mxnet-echo[ilp]'"
    assert checks["energy of CPUs"].remark == "this user may not read it; to allow it: sudo something"
    assert {check.state for check in checks.values()} == {FINE}, "echo saves as much without them"


def test_installed_extras_have_no_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(machine, "Rapl", lambda: None)
    assert [(check.value, check.remark) for check in machine.optional_dependencies()] == [
        (True, ""),
        (True, ""),
        (True, "by RAPL"),
    ]


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
def test_wheel_has_code_for_its_devices_alone(wheel: str, capability: tuple[int, int], runs: bool | None) -> None:
    assert machine.has_code(wheel, capability) is runs


def test_ptx_version_matches_the_required_cuda() -> None:
    """PTX of version 6.0 came with CUDA 9.0."""
    texts = list(ptx.texts().values())
    assert texts
    assert {re.findall(r"^\.version (\S+)", text, re.MULTILINE)[0] for text in texts} == {"6.0"}
    assert machine.PTX_CUDA == (9, 0)
    targets = {re.findall(r"^\.target sm_(\d)(\d)", text, re.MULTILINE)[0] for text in texts}
    assert targets == {tuple(map(str, machine.PTX_CAPABILITY))}


def checks(
    monkeypatch: pytest.MonkeyPatch, found: Driver, why_not: Sequence[str] | None, wheel: str = "mxnet-cu112"
) -> dict[str, Check]:
    monkeypatch.setattr(machine, "driver", lambda: found)
    return {check.name: check for check in machine.gpus(wheel, why_not)}


def device(major: int, minor: int) -> Gpu:
    return Gpu("Some GPU", 16 << 30, (major, minor))


def test_a_gpu_that_runs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks(monkeypatch, Driver((12, 4), "550.54.14", (device(8, 6),)), [""])
    assert found["driver"] == Check("GPU", "driver", "550.54.14", "runs CUDA up to 12.4")
    assert found["gpu(0)"].value == "Some GPU, 17.2 GB, compute capability 8.6"
    assert found["gpu(0) MXNet has code"].value is found["gpu(0) runs echo's kernels"].value is True
    assert {check.state for check in found.values()} == {FINE}


def test_a_gpu_that_is_too_new_for_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks(monkeypatch, Driver((12, 4), "", (device(9, 0),)), [""])
    assert found["gpu(0) MXNet has code"] == Check(
        "GPU", "gpu(0) MXNet has code", False, "the wheel has code for 5.0 to 8.9", OFF
    )


def test_a_gpu_next_to_a_wheel_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks(monkeypatch, Driver((12, 4), "", (device(8, 0),)), [], "mxnet")
    assert "pip install mxnet-cu112" in found["gpu(0) MXNet has code"].remark
    assert found["gpu(0) runs echo's kernels"].remark == "MXNet does not see the device"


def test_kernels_that_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Driver((8, 0), "390.1", (device(8, 0), device(3, 5)))
    found = checks(monkeypatch, two, ["the driver refuses them", ""])
    assert found["driver"].state == OFF
    assert found["driver"].remark == "too old for echo's kernels; runs CUDA up to 8.0"
    assert found["gpu(0) runs echo's kernels"].remark == "the driver refuses them"
    assert found["gpu(1) runs echo's kernels"].remark == "they need compute capability 5.0"


def test_unanswered_mxnet_leaves_out_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks(monkeypatch, Driver((12, 4), "", (device(8, 0),)), None)
    assert "gpu(0) runs echo's kernels" not in found


def test_missing_driver_or_device_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks(monkeypatch, Driver((12, 4), "", ()), [])["devices"].value == 0

    def absent() -> Driver:
        raise LookupError("there is no NVIDIA driver: no such file")

    monkeypatch.setattr(machine, "driver", absent)
    *_, check = machine.gpus("mxnet", [])
    assert check == Check("GPU", "driver", "none", "there is no NVIDIA driver: no such file")


ASK = """
import dataclasses, json, sys
{first}
from echo.cli.machine import mxnet
wheel, checks, devices = mxnet()
print(json.dumps([wheel, devices is not None, [dataclasses.asdict(check) for check in checks]]))
"""


def ask(first: str) -> tuple[str, bool, dict[str, Any]]:
    """The wheel, whether it was examined, and the checks by name."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ASK.format(first=first)], capture_output=True,
                          text=True, timeout=120, check=True)  # fmt: skip
    wheel, is_examined, checks = json.loads(done.stdout.splitlines()[-1])
    return wheel, is_examined, {check["name"]: check for check in checks}


def test_mxnet_as_it_should_be() -> None:
    wheel, is_examined, checks = ask("")
    assert is_examined
    assert checks["wheel"]["value"] == f"{wheel} 1.9.1"
    assert checks["hook"]["value"] == "fits"
    assert checks["fused operators"]["value"] == "on"
    assert {check["state"] for check in checks.values()} == {FINE}


def test_missing_mxnet_stops_and_names_the_extra() -> None:
    _, is_examined, checks = ask("sys.modules['mxnet'] = None")
    assert not is_examined
    assert checks["import"]["state"] == STOPS
    assert "pip install 'mxnet-echo[cpu]'" in checks["import"]["remark"]


def test_another_version(tmp_path: Path) -> None:
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text("__version__ = '1.8.0'\n")
    _, is_examined, checks = ask(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert not is_examined
    assert checks["version"]["value"] == "1.8.0"
    assert checks["fits echo"]["remark"] == "expected mxnet 1.9.1, got 1.8.0"
    assert checks["fits echo"]["state"] == STOPS


@pytest.mark.parametrize("error", ["OSError('libgomp.so.1 is not there')", "ImportError('no module x', name='x')"])
def test_an_mxnet_that_does_not_import(error: str, tmp_path: Path) -> None:
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text(f"raise {error}\n")
    _, is_examined, checks = ask(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert not is_examined
    assert checks["import"]["state"] == STOPS
    assert checks["import"]["remark"].startswith(error.split("(")[0])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_cuda_libraries_that_are_missing(tmp_path: Path) -> None:
    made = wheels(tmp_path / "away", ["libcudart.so.11.0"])
    mxnet(tmp_path, [*made.values(), stub(tmp_path / "away" / "libcuda.so.1", 1)])
    info = tmp_path / "mxnet_cu112-1.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mxnet-cu112\nVersion: 1.9.1\n")
    wheel, is_examined, checks = ask(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert (wheel, is_examined) == ("mxnet-cu112", False)
    assert checks["CUDA libraries"]["state"] == checks["import"]["state"] == STOPS
    assert "needs libcudart.so.11.0: see the README" in checks["CUDA libraries"]["remark"]


def test_two_wheels() -> None:
    (check, *_) = machine._wheels({"mxnet": "1.9.1", "mxnet-cu112": "1.9.1"})
    assert (check.value, check.state) == ("mxnet 1.9.1, mxnet-cu112 1.9.1", OFF)
    assert "uninstall" in check.remark


def test_a_damaged_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libmxnet.so").write_bytes(b"no library")
    monkeypatch.setattr("echo.compat.libmxnet", lambda: tmp_path / "libmxnet.so")
    *_, check = machine._wheels({"mxnet": "1.9.1"})
    assert (check.name, check.state) == ("library is whole", STOPS)


def test_a_hook_that_does_not_fit() -> None:
    checks = list(machine._examined(Examined("an unknown function", "", "the driver is too old", (), True)))
    assert checks == [
        Check("MXNet", "hook", "does not fit",
             "an unknown function: MXNet's mirroring attributes are used, which save less", OFF),
        Check("MXNet", "fused operators", "off", "they need the hook", OFF),
        Check("MXNet", "GPUs", "none", "the driver is too old", OFF),
        Check("MXNet", "MXNET_USE_FUSION", "on", "graphs that echo plans are bound without it"),
    ]  # fmt: skip


FINE_ONE = Check("Python", "version", "3.11.7")
OFF_ONE = Check("cache", "writable", False, "read-only file system: each process measures and plans again", OFF)
STOPS_ONE = Check("MXNet", "fits echo", False, "expected mxnet 1.9.1, got 1.8.0", STOPS)


@pytest.mark.parametrize(
    ("checks", "works", "summary"),
    [
        ([FINE_ONE], True, ["echo works here."]),
        ([FINE_ONE, OFF_ONE], True, ["echo works here.", "Off: cache: writable."]),
        ([OFF_ONE, STOPS_ONE], False,
         ["echo cannot work here:", "  MXNet, fits echo: expected mxnet 1.9.1, got 1.8.0", "Off: cache: writable."]),
    ],
    ids=["all is well", "something is off", "it cannot work"],
)  # fmt: skip
def test_summary_follows_from_the_states_of_facts(checks: list[Check], works: bool, summary: list[str]) -> None:
    assert machine.works(checks) is works
    assert machine.render(checks).splitlines()[-len(summary) :] == summary


def test_fact_that_is_off_has_its_reason_in_its_row() -> None:
    text = machine.render([FINE_ONE, OFF_ONE])
    (row,) = [line for line in text.splitlines() if "cache: writable" in line and "│" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")][:2] == ["cache: writable", "no"]
    assert "off: read-only file system" in row
