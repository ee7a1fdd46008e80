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
from echo.cli.machine import FINE, OFF, STOPS, Fact
from echo.frontend.examine import Examined
from echo.kernels.cuda import ptx
from echo.system.cuda import Driver, Gpu
from tests.support.stub_libraries import mxnet, stub, wheels


def test_missing_extras_name_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise LookupError("CPU energy: this user may not read it; to allow it: sudo something")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(machine, "Rapl", refuse)
    facts = {fact.name: fact for fact in machine.extras()}
    assert [fact.value for fact in facts.values()] == [False] * 3
    assert facts["pages and pictures"].remark == "pip install 'mxnet-echo[report]'"
    assert facts["the policy ilp"].remark == "pip install 'mxnet-echo[ilp]'"
    assert facts["energy of CPUs"].remark == "this user may not read it; to allow it: sudo something"
    assert {fact.state for fact in facts.values()} == {FINE}, "echo saves as much without them"


def test_installed_extras_have_no_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(machine, "Rapl", lambda: None)
    assert [(fact.value, fact.remark) for fact in machine.extras()] == [(True, ""), (True, ""), (True, "by RAPL")]


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


def facts(
    monkeypatch: pytest.MonkeyPatch, found: Driver, why_not: Sequence[str] | None, wheel: str = "mxnet-cu112"
) -> dict[str, Fact]:
    monkeypatch.setattr(machine, "driver", lambda: found)
    return {fact.name: fact for fact in machine.gpus(wheel, why_not)}


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
        "GPU", "gpu(0) MXNet has code", False, "the wheel has code for 5.0 to 8.9", OFF
    )


def test_a_gpu_next_to_a_wheel_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_unanswered_mxnet_leaves_out_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = facts(monkeypatch, Driver((12, 4), "", (device(8, 0),)), None)
    assert "gpu(0) runs echo's kernels" not in found


def test_missing_driver_or_device_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts(monkeypatch, Driver((12, 4), "", ()), [])["devices"].value == 0

    def absent() -> Driver:
        raise LookupError("there is no NVIDIA driver: no such file")

    monkeypatch.setattr(machine, "driver", absent)
    *_, fact = machine.gpus("mxnet", [])
    assert fact == Fact("GPU", "driver", "none", "there is no NVIDIA driver: no such file")


ASK = """
import dataclasses, json, sys
{first}
from echo.cli.machine import mxnet
wheel, facts, devices = mxnet()
print(json.dumps([wheel, devices is not None, [dataclasses.asdict(fact) for fact in facts]]))
"""


def ask(first: str) -> tuple[str, bool, dict[str, Any]]:
    """The wheel, whether it was examined, and the facts by name."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ASK.format(first=first)], capture_output=True,
                          text=True, timeout=120, check=True)  # fmt: skip
    wheel, is_examined, facts = json.loads(done.stdout.splitlines()[-1])
    return wheel, is_examined, {fact["name"]: fact for fact in facts}


def test_mxnet_as_it_should_be() -> None:
    wheel, is_examined, facts = ask("")
    assert is_examined
    assert facts["wheel"]["value"] == f"{wheel} 1.9.1"
    assert facts["hook"]["value"] == "fits"
    assert facts["fused operators"]["value"] == "on"
    assert {fact["state"] for fact in facts.values()} == {FINE}


def test_missing_mxnet_stops_and_names_the_extra() -> None:
    _, is_examined, facts = ask("sys.modules['mxnet'] = None")
    assert not is_examined
    assert facts["import"]["state"] == STOPS
    assert "pip install 'mxnet-echo[cpu]'" in facts["import"]["remark"]


def test_another_version(tmp_path: Path) -> None:
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text("__version__ = '1.8.0'\n")
    _, is_examined, facts = ask(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert not is_examined
    assert facts["version"]["value"] == "1.8.0"
    assert facts["fits echo"]["remark"] == "expected mxnet 1.9.1, got 1.8.0"
    assert facts["fits echo"]["state"] == STOPS


@pytest.mark.parametrize("error", ["OSError('libgomp.so.1 is not there')", "ImportError('no module x', name='x')"])
def test_an_mxnet_that_does_not_import(error: str, tmp_path: Path) -> None:
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text(f"raise {error}\n")
    _, is_examined, facts = ask(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert not is_examined
    assert facts["import"]["state"] == STOPS
    assert facts["import"]["remark"].startswith(error.split("(")[0])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_cuda_libraries_that_are_missing(tmp_path: Path) -> None:
    made = wheels(tmp_path / "away", ["libcudart.so.11.0"])
    mxnet(tmp_path, [*made.values(), stub(tmp_path / "away" / "libcuda.so.1", 1)])
    info = tmp_path / "mxnet_cu112-1.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mxnet-cu112\nVersion: 1.9.1\n")
    wheel, is_examined, facts = ask(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert (wheel, is_examined) == ("mxnet-cu112", False)
    assert facts["CUDA libraries"]["state"] == facts["import"]["state"] == STOPS
    assert "needs libcudart.so.11.0: see the README" in facts["CUDA libraries"]["remark"]


def test_two_wheels() -> None:
    (fact, *_) = machine._wheels({"mxnet": "1.9.1", "mxnet-cu112": "1.9.1"})
    assert (fact.value, fact.state) == ("mxnet 1.9.1, mxnet-cu112 1.9.1", OFF)
    assert "uninstall" in fact.remark


def test_a_damaged_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libmxnet.so").write_bytes(b"no library")
    monkeypatch.setattr("echo.compat.libmxnet", lambda: tmp_path / "libmxnet.so")
    *_, fact = machine._wheels({"mxnet": "1.9.1"})
    assert (fact.name, fact.state) == ("library is whole", STOPS)


def test_a_hook_that_does_not_fit() -> None:
    facts = list(machine._examined(Examined("an unknown function", "", "the driver is too old", (), True)))
    assert facts == [
        Fact("MXNet", "hook", "does not fit",
             "an unknown function: MXNet's mirroring attributes are used, which save less", OFF),
        Fact("MXNet", "fused operators", "off", "they need the hook", OFF),
        Fact("MXNet", "GPUs", "none", "the driver is too old", OFF),
        Fact("MXNet", "MXNET_USE_FUSION", "on", "graphs that echo plans are bound without it"),
    ]  # fmt: skip


FINE_ONE = Fact("Python", "version", "3.11.7")
OFF_ONE = Fact("cache", "writable", False, "read-only file system: each process measures and plans again", OFF)
STOPS_ONE = Fact("MXNet", "fits echo", False, "expected mxnet 1.9.1, got 1.8.0", STOPS)


@pytest.mark.parametrize(
    ("facts", "works", "summary"),
    [
        ([FINE_ONE], True, ["echo works here."]),
        ([FINE_ONE, OFF_ONE], True, ["echo works here.", "Off: cache: writable."]),
        ([OFF_ONE, STOPS_ONE], False,
         ["echo cannot work here:", "  MXNet, fits echo: expected mxnet 1.9.1, got 1.8.0", "Off: cache: writable."]),
    ],
    ids=["all is well", "something is off", "it cannot work"],
)  # fmt: skip
def test_summary_follows_from_the_states_of_facts(facts: list[Fact], works: bool, summary: list[str]) -> None:
    assert machine.works(facts) is works
    assert machine.render(facts).splitlines()[-len(summary) :] == summary


def test_fact_that_is_off_has_its_reason_in_its_row() -> None:
    text = machine.render([FINE_ONE, OFF_ONE])
    (row,) = [line for line in text.splitlines() if "cache: writable" in line and "│" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")][:2] == ["cache: writable", "no"]
    assert "off: read-only file system" in row
