"""`mxecho record`: real trainings without and with echo, what fails, and what is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from echo.cli import main, run
from echo.cli.run import render_recording
from echo.instrument.windows import summary
from tests.cli.models import check_line
from tests.instrument.rows_of import row
from tests.instrument.test_recording import MODULE


def record(folder: Path, *words: str, program: str = MODULE) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-W", "ignore", "-m", "echo", "record", "--every", "4", "--warmup", "1", *words]
    return subprocess.run([*command, "--", sys.executable, "-W", "ignore", "train.py", "--every"], timeout=200,
                          cwd=folder, capture_output=True, text=True, check=False, env={**os.environ})  # fmt: skip


def test_comparison_records_runs_without_and_with_echo(tmp_path: Path) -> None:
    done = record(tmp_path, "--compare", "off,on", "--picture", "both.svg")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained\n") == 2
    for words in ("without echo", "with echo", "ms a step", "of a step, predicted", "rows and sums: recording"):
        assert words in done.stdout
    assert sorted(path.name for path in (tmp_path / "recording").iterdir()) == [
        "off.csv", "off.json", "on.csv", "on.json",
    ]  # fmt: skip
    assert (tmp_path / "both.svg").exists()


@pytest.mark.slow
def test_json_and_the_status_of_the_program(tmp_path: Path) -> None:
    done = record(tmp_path, "--json", "--out", "here", program=MODULE + "import sys; sys.exit(7)\n")
    assert done.returncode == 7
    sums = json.loads(done.stdout)
    recorded = json.loads((tmp_path / "here" / "run.json").read_text())
    assert sums["run"] == {**recorded["summary"], "predicted_process": None}
    assert recorded["predicted"] is None, "echo was off"
    assert sums["run"]["steps"] == 8
    assert "trained" in done.stderr, "the program's words do not come between"


def test_program_without_steps_is_an_error(tmp_path: Path) -> None:
    done = record(tmp_path, program="print('hello')")
    assert done.returncode == 1
    assert done.stderr.startswith("mxecho record: no training step was seen: ")
    assert record(tmp_path, program="raise SystemExit(3)").returncode == 3


def heed() -> None:
    """Has Ctrl-C end this process, also where the tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_interrupted_recording_shows_its_rows(tmp_path: Path) -> None:
    # a signal that comes just before a system call is noticed after it, so that calls are short
    program = MODULE + "import time\nopen('ready', 'w').close()\nfor _ in range(1000):\n    time.sleep(0.1)\n"
    (tmp_path / "train.py").write_text(program)
    command = [sys.executable, "-m", "echo", "record", "--every", "4", sys.executable, "-W", "ignore", "train.py"]
    child = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE, preexec_fn=heed,
                             stderr=subprocess.PIPE, text=True)  # fmt: skip
    for _ in range(1200):
        if (tmp_path / "ready").exists():
            break
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does for Ctrl-C
    out, err = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGINT, err
    assert "steps left out (warm-up)" in out
    assert (tmp_path / "recording" / "run.json").exists()


@pytest.mark.parametrize(("words", "said"), [
    (["--compare", "on,run"], "--compare: expected off, on or off,on, got 'on,run'"),
    (["--compare", ""], "--compare: expected off, on or off,on, got ''"),
    (["--compare", "off,off"], "--compare: expected off, on or off,on, got 'off,off'"),
    (["--picture", "nowhere/both.svg"], "nowhere/both.svg cannot be written: there is no folder nowhere"),
    (["--picture", "both.txt"], "expected a picture NAME.png or NAME.svg, got 'both.txt'"),
    (["--out", "/proc/nothing"], "--out: expected a folder to write to, got '/proc/nothing': No such file"),
], ids=str)  # fmt: skip
def test_bad_options_are_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in check_line(["record", *words, "--", "true"], capsys, 2)


def test_a_command_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["record", "nowhere"]) == 2
    assert (
        capsys.readouterr().err
        == "mxecho: expected a command, as python train.py, got 'nowhere', which is no program\n"
    )
    assert main.main(["record"]) == 2
    assert main.main(["record", "--every", "0", "true"]) == 2


def cells(text: str, words: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if words in line]
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_two_side_by_side() -> None:
    off = summary([row(0), row(1), row(2, gpu_joules=None)])
    on = summary([row(0), row(1, seconds=0.25, storage=16 * 10**6)])
    text = render_recording({"off": off, "on": {**on, "storage": 16 * 10**6}})
    assert "without echo" in text
    assert cells(text, "ms a step")[1:] == ["50.0", "25.0", "-50 %"]
    assert cells(text, "storage")[1:] == ["64.0", "16.0", "-75 %"]
    assert cells(text, "steps measured")[1:] == ["20", "10", ""]
    assert "energy" not in text, "it was not measured"


def test_one_alone_and_what_only_one_has() -> None:
    text = render_recording({"run": summary([row(1, gpu_joules=32.0)])})
    assert cells(text, "J a sample")[1:] == ["0.100"]
    text = render_recording({"off": summary([row(1, gpu_joules=32.0)]), "on": summary([row(0)])})
    assert cells(text, "GPU energy")[1:] == ["0.100", "-", ""]


AT_LEAST = "a step took {} times the one without echo, 0.50 was predicted"
ADVICE = ": a smaller max_overhead or heavy='never' leaves out recomputation"


@pytest.mark.parametrize(
    ("predicted", "recomputation", "on", "said"),
    [
        pytest.param(1.1, 0.1, 54.0, "", id="as predicted"),
        pytest.param(0.5, 0.1, 30.0, AT_LEAST.format("0.60") + " (", id="slower than predicted, faster than stock"),
        pytest.param(0.5, 0.1, 60.0, AT_LEAST.format("1.20") + ADVICE, id="slower than stock"),
        pytest.param(0.5, 0.001, 60.0, AT_LEAST.format("1.20") + " (", id="slower, with hardly any recomputation"),
        pytest.param(None, None, 90.0, "", id="not predicted"),
    ],
)
def test_step_slower_than_predicted_is_said(
    predicted: float | None, recomputation: float | None, on: float, said: str, tmp_path: Path
) -> None:
    recorded = {"predicted_time": predicted, "predicted_recomputation": recomputation}
    (tmp_path / "on.json").write_text(json.dumps(recorded))
    sums: dict[str, dict[str, Any]] = {"off": {"ms_a_step": 50.0}, "on": {"ms_a_step": on}}
    found = run._predicted_time(sums, tmp_path)
    assert found == ({} if predicted is None else recorded)
    sums["on"].update(found)
    assert (run._slower(sums) or "").startswith(said)
    assert bool(run._slower(sums)) == bool(said)
    assert run._predicted_time({"on": sums["on"]}, tmp_path) == {}


def test_predicted_time_is_shown_as_the_change_that_the_plan_predicts() -> None:
    off, on = summary([row(0), row(1)]), summary([row(0), row(1, seconds=0.25)])
    text = render_recording({"off": {**off, "predicted_time": 1.0}, "on": {**on, "predicted_time": 0.38}})
    assert cells(text, "time of a step, predicted")[1:] == ["100", "38", "-62 %"]
