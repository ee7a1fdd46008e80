"""`mxecho doctor` as a whole: its text, its JSON, its exit status; and `mxecho cache`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Mapping

import pytest

from echo.cli import machine, main
from echo.cli.machine import STOPS, Check
from echo.cli.maintenance import rows_of
from echo.system.files import PLANS, TIMES, CachedFile
from tests.cli.models import check_line

FINE_ONE = Check("Python", "version", "3.11.7")
STOPS_ONE = Check("MXNet", "fits echo", False, "expected mxnet 1.9.1, got 1.8.0", STOPS)


def test_here_echo_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    text = "\n".join(lines)
    for words in ("MXNet: wheel", "MXNet: hook", "cache: folder", "echo: compiler", "GPU: driver", "echo works here."):
        assert words in text


@pytest.mark.parametrize(("checks", "status"), [([FINE_ONE], 0), ([FINE_ONE, STOPS_ONE], 1)], ids=["works", "does not"])
def test_exit_status(
    checks: list[Check], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "examine", lambda: checks)
    assert main.main(["doctor"]) == status
    assert capsys.readouterr().out.splitlines() == machine.render(checks).splitlines()
    assert main.main(["doctor", "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert found["works"] is (status == 0)
    assert [Check(**check) for check in found["facts"]] == checks


def command(environment: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-W", "ignore", "-m", "echo", "doctor", *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=environment)


def test_command_without_writable_cache_names_what_is_off(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {**os.environ, "ECHO_CACHE_DIR": str(tmp_path / "file"), "ECHO_BUDGET": "1GB", "ECHO_POLCY": "echo"}
    done = command(environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Off: cache: writable, variables: ECHO_BUDGET, variables: ECHO_POLCY."


@pytest.mark.slow
def test_command_with_invalid_option_fails_and_names_it() -> None:
    done = command({**os.environ, "ECHO_MAX_OVERHEAD": "banana"}, "--json")
    assert done.returncode == 1
    stops = [check["name"] for check in json.loads(done.stdout)["facts"] if check["state"] == STOPS]
    assert stops == ["ECHO_MAX_OVERHEAD"]


# `mxecho cache show` and `mxecho cache clear`.


def test_cached_plans_are_shown_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ECHO_CACHE_DIR", str(folder))
    assert main.main(["cache", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(folder), "kinds": []}
    (folder / "plans").mkdir(parents=True)
    (folder / "plans" / f"{'0' * 40}.json").write_bytes(b"x" * 10**6)
    (folder / "mine.txt").touch()
    assert main.main(["cache", "show"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{folder}: 1 file, 1.0 MB", "  plans: 1 file, 1.0 MB, 0 seconds old",
    ]  # fmt: skip
    assert main.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"{folder}: removed 1 file, 1.0 MB\n"
    assert main.main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(folder), "removed": 0, "bytes": 0}
    assert (folder / "mine.txt").exists()


def test_rows_are_kinds_with_ages() -> None:
    files = [
        CachedFile(Path("a"), TIMES, 3, 5.0),
        CachedFile(Path("b"), PLANS, 7, 10.0),
        CachedFile(Path("c"), PLANS, 1, 40.0),
    ]
    assert rows_of(files, 100.0) == [
        {"kind": TIMES, "files": 1, "bytes": 3, "newest_seconds": 95.0, "oldest_seconds": 95.0},
        {"kind": PLANS, "files": 2, "bytes": 8, "newest_seconds": 60.0, "oldest_seconds": 90.0},
    ]


def test_ages_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    files = tuple(CachedFile(Path("a"), TIMES, 0, -written) for written in (7200.0, 86400.0 * 3))
    monkeypatch.setattr("echo.system.files.cached_files", lambda _: files)
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert main.main(["cache", "show"]) == 0
    assert "2 hours to 3 days old" in capsys.readouterr().out


def test_a_folder_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / "file"))
    assert "Not a directory" in check_line(["cache", "show"], capsys)
