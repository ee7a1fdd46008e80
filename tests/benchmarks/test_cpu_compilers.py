"""The kernels that compilers are compared by run as the comparison calls them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.cpu_compilers import CASES, Build, calls_of
from benchmarks.gpu_cases import Case
from echo.kernels import library


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    monkeypatch.setenv("ECHO_DEBUG", "level=portable")  # and back again after the test
    made = Path(shutil.copy(library.kernels_library()._name, tmp_path))
    return Build("the one at hand", made, "portable")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_every_case_is_timed(case: Case, build: Build) -> None:
    assert build.level == "portable"
    calls = calls_of(case)
    assert list(calls) == [case.kernel, f"{case.kernel}_grad"]
    for raw, _ in calls.values():
        assert build.seconds(raw) > 0
