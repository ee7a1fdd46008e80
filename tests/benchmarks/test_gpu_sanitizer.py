"""compute-sanitizer's place taken by a program of a few lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_sanitizer
from benchmarks.gpu_clock import Clock
from benchmarks.gpu_kernels import KERNELS
from benchmarks.gpu_sanitizer import TOOLS, run_all, sanitizer_rows, small_cases
from tests.kernels.cuda_emulation import Emulated, built

SANITIZER = """#!/bin/sh
echo "tool $2"
if [ "$2" = {bad} ]; then echo "========= ERROR SUMMARY: 3 errors"; exit 99; fi
shift 4
"$@"
status=$?
echo "========= {summary}"
exit $status
"""
NOTHING = "ERROR SUMMARY: 0 errors"
OWN = "the watched program failed (exit status 1): "
FAILING = (sys.executable, "-c", "raise SystemExit('wrong')")


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "compute-sanitizer"
    path.write_text(SANITIZER.format(bad="none", summary=NOTHING))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return path


OK = (sys.executable, "-c", "import sys; assert sys.argv[1] == 'some.so'")


def test_each_tool_watches_the_cases(sanitizer: Path) -> None:
    rows = list(sanitizer_rows(Path("some.so"), Clock(60), OK))
    assert rows == [{"section": "sanitizer", "tool": tool, "summary": "0 errors"} for tool in TOOLS]


def test_tools_finding_fails_its_row_alone(sanitizer: Path) -> None:
    sanitizer.write_text(SANITIZER.format(bad="racecheck", summary=NOTHING))
    rows = {row["tool"]: row for row in sanitizer_rows(Path("some.so"), Clock(60), OK)}
    assert rows["racecheck"]["summary"] == "3 errors"
    assert rows["racecheck"]["failed"].startswith("found by the tool: tool racecheck")
    assert "failed" not in rows["memcheck"]


@pytest.mark.parametrize(
    ("summary", "whose"),
    [
        (NOTHING, OWN),
        ("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", OWN),
        ("ERROR SUMMARY: 10 errors", "found by the tool: "),
        ("RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)", "found by the tool: "),
    ],
)
def test_a_program_that_fails_is_a_failure(sanitizer: Path, summary: str, whose: str) -> None:
    """The tool ends with the program's exit status then, whatever it found itself."""
    sanitizer.write_text(SANITIZER.format(bad="none", summary=summary))
    (row, *_) = sanitizer_rows(Path("some.so"), Clock(60), FAILING)
    assert row["failed"].startswith(whose)
    assert "wrong" in row["failed"]
    assert row["summary"] == summary.split(": ", 1)[1]


def test_a_tool_that_takes_too_long_is_skipped(sanitizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(words: list[str], **options: object) -> object:
        raise gpu_sanitizer.subprocess.TimeoutExpired(words, float(str(options["timeout"])))

    monkeypatch.setattr(gpu_sanitizer.subprocess, "run", late)
    (row, *_) = sanitizer_rows(Path("some.so"), Clock(60), OK)
    assert row["skipped"] == "not done after 60 s"


def test_missing_sanitizer_is_skipped_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (row,) = sanitizer_rows(Path("some.so"), Clock(60), OK)
    assert "not on the path" in row["skipped"]


def test_each_kernel_is_watched() -> None:
    cases = small_cases()
    assert {case.kernel for case in cases} == set(KERNELS)
    assert len(cases) == len(KERNELS)


@pytest.mark.slow
def test_the_cases_run() -> None:
    run_all(Emulated(built().driver, built().kernels))
