"""`mxecho doctor` as a whole: its text, its JSON, its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Mapping

import pytest

from echo.cli import machine, main
from echo.cli.machine import STOPS, Fact

FINE_ONE = Fact("Python", "version", "3.11.7")
STOPS_ONE = Fact("MXNet", "fits echo", False, "expected mxnet 1.9.1, got 1.8.0", STOPS)


def test_here_echo_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    text = "\n".join(lines)
    for words in ("MXNet: wheel", "MXNet: hook", "cache: folder", "echo: compiler", "GPU: driver", "echo works here."):
        assert words in text


@pytest.mark.parametrize(("facts", "status"), [([FINE_ONE], 0), ([FINE_ONE, STOPS_ONE], 1)], ids=["works", "does not"])
def test_exit_status(
    facts: list[Fact], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "examine", lambda: facts)
    assert main.main(["doctor"]) == status
    assert capsys.readouterr().out.splitlines() == machine.render(facts).splitlines()
    assert main.main(["doctor", "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert found["works"] is (status == 0)
    assert [Fact(**fact) for fact in found["facts"]] == facts


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
    stops = [fact["name"] for fact in json.loads(done.stdout)["facts"] if fact["state"] == STOPS]
    assert stops == ["ECHO_MAX_OVERHEAD"]
