"""The checks of `mxecho doctor` about the machine, without MXNet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest

from echo.cli import machine
from echo.cli.machine import FINE, OFF, STOPS, Check
from echo.errors import NativeError
from echo.plans.variables import VARIABLES
from echo.system.files import cache_folder


def by_name(checks: Iterator[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_facts_of_this_python_are_fine() -> None:
    checks = by_name(machine.python())
    assert checks["numpy"].value == np.__version__
    assert {check.state for check in checks.values()} == {FINE}


@pytest.mark.parametrize(("version", "state"), [((3, 7), STOPS), ((3, 8), FINE), ((3, 12), FINE), ((3, 13), STOPS)])
def test_unsupported_python_version_stops(
    version: tuple[int, int], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.version_info", version)
    assert by_name(machine.python())["version"].state == state


def test_numpy_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "version", lambda name: "2.1.0")
    check = by_name(machine.python())["numpy"]
    assert (check.value, check.state) == ("2.1.0", STOPS)
    assert "pip install 'numpy<2'" in check.remark


def test_missing_start_up_file_switches_echo_1_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(machine.sys.modules, "_echo_startup", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check = by_name(machine.python())["ECHO=1"]
    assert check.state == OFF
    assert "mxecho run" in check.remark


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise NativeError("libecho_planner.so is not installed")

    monkeypatch.setattr("echo.native.planner_library", missing)
    checks = by_name(machine.libraries())
    planner = checks["planner (C++)"]
    assert (planner.value, planner.remark, planner.state) == ("missing", "libecho_planner.so is not installed", OFF)
    assert checks["hook (C++)"].state == checks["kernels (C++)"].state == FINE
    assert checks["CPU kernels use"].value in ("avx512", "avx2", "portable")


def test_compiler_is_that_of_cxx_and_fine_when_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "mine"
    own.touch(mode=0o755)
    monkeypatch.setenv("CXX", str(own))
    assert machine.compiler().value == str(own)
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    check = machine.compiler()
    assert (check.value, check.state) == ("none", FINE)


def test_cache_facts_count_own_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    (tmp_path / f"costs-{'0' * 16}.json").write_bytes(bytes(3 << 20))
    (tmp_path / "another users").write_bytes(bytes(3 << 20))
    checks = by_name(machine.cache())
    assert checks["folder"].value == str(tmp_path) == str(cache_folder())
    assert checks["size"].value == "1 file, 3.1 MB"
    assert checks["writable"].value is True
    assert {check.state for check in checks.values()} == {FINE}
    assert len(list(tmp_path.iterdir())) == 2, "nothing else is left"


def test_a_cache_that_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / "a" / "b"))
    checks = by_name(machine.cache())
    assert checks["writable"].value is True
    assert "size" not in checks
    assert not (tmp_path / "a").exists()


def test_a_cache_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file instead of the folder: missing permissions do not stop root."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / "file"))
    check = by_name(machine.cache())["writable"]
    assert (check.value, check.state) == (False, OFF)
    assert "each process measures and plans again" in check.remark


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_cache_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    os.chown(tmp_path, 54321, -1)
    check = by_name(machine.cache())["owner"]
    assert (check.value, check.state) == ("54321", OFF)


def test_misspelt_and_invalid_variables_are_remarked() -> None:
    environment = {"ECHO": "1", "ECHO_POLCY": "search", "ECHO_MAX_OVERHEAD": "banana", "ECHOES": "1", "PATH": "/bin",
                   "ECHO_DEBUG": "check,level=AVX2", "ECHO_WHATEVER": ""}  # fmt: skip
    checks = by_name(machine.variables(environment))
    assert sorted(checks) == ["ECHO", "ECHO_DEBUG", "ECHO_MAX_OVERHEAD", "ECHO_POLCY", "ECHO_WHATEVER"]
    assert (checks["ECHO"].state, checks["ECHO"].remark) == (FINE, VARIABLES["ECHO"][2])
    assert (checks["ECHO_POLCY"].state, checks["ECHO_POLCY"].remark) == (
        OFF, "no variable of echo's; ECHO_POLICY is one"
    )  # fmt: skip
    assert checks["ECHO_WHATEVER"].remark == "no variable of echo's"
    assert checks["ECHO_MAX_OVERHEAD"].state == STOPS
    assert "got 'banana'" in checks["ECHO_MAX_OVERHEAD"].remark


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ECHO_MAX_OVERHEAD", "nan", "MAX_OVERHEAD: expected a fraction"),
        ("ECHO_MEMORY_BUDGET", "-1", "MEMORY_BUDGET: expected whole bytes"),
        ("ECHO_OPTIMIZER_STATES", "99", "OPTIMIZER_STATES: expected a number from 0 to 16"),
        ("ECHO_MAX_PLANNING", "0", "MAX_PLANNING: expected seconds above 0"),
        ("ECHO_POLICY", "best", "POLICY: expected one of"),
        ("ECHO_DEBUG", "dump=/dev/null", "dump: expected a folder to write to, got '/dev/null'"),
        ("ECHO_DEBUG", "level=avx3", "expected dump=FOLDER, check, level=avx512 or avx2 or portable, or cublas=0, got"),
        ("ECHO_TRACE", "/tmp", "this variable is now ECHO_DEBUG=dump=FOLDER"),
    ],
)
def test_values_with_which_nothing_is_planned(name: str, text: str, message: str) -> None:
    check = by_name(machine.variables({"ECHO": "1", name: text}))[name]
    assert check.state == STOPS
    assert message in check.remark


def test_a_folder_for_traces(tmp_path: Path) -> None:
    assert by_name(machine.variables({"ECHO_DEBUG": f"dump={tmp_path / 'made' / 'later'}"}))["ECHO_DEBUG"].state == FINE


def test_variables_that_do_not_go_together() -> None:
    assert "all of them" not in by_name(machine.variables({"ECHO_FUSE": "0", "ECHO_EXACT": "0"}))
    check = by_name(machine.variables({"ECHO_FUSE": "memory", "ECHO_EXACT": "1"}))["all of them"]
    assert check.state == STOPS
    assert "ECHO_FUSE" in check.remark
