"""Whatever the command line is given, an error is one line on standard error, and never a traceback."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo.cli import main
from echo.system.threads import ONCE
from tests.cli.models import SAVED, check_line

pytestmark = pytest.mark.usefixtures("cheap_planning")
ARGUMENTS = {
    "plan": ["x=2,3"], "plan --load": [], "schedule": ["--budget", "1GB"], "profile": ["x=2,3"],
    "profile ": [],  # a saved profile
    "profile --compare": ["x=2,3"], "profile --frontier": ["x=2,3"],
}  # fmt: skip
COMMANDS = ("run", "verify", "plan", "profile", "schedule", "record", "doctor", "cache", "cache show", "cache clear")
BAD_FILES: dict[str, str | bytes] = {
    "empty": "", "zeros": b"\0" * 9, "not UTF-8": SAVED.encode().replace(b'"t"', b'"\xff"'),
    "list": "[]", "null": "null",
    "deep list": "[" * 100_000, "deep object": '{"a":' * 50_000,
    "infinite input": SAVED.replace("[0,0,0]", "[Infinity,0,0]"), "infinite head": SAVED.replace("[[1,", "[[1e400,"),
    "no number": SAVED.replace("[0,0,0]", "[NaN,0,0]"), "huge number": SAVED.replace("[0,0,0]", f"[{'9' * 5000},0,0]"),
    "fraction": SAVED.replace("[0,0,0]", "[0.5,0,0]"), "text": SAVED.replace("[0,0,0]", '"000"'),
    "key twice": SAVED.replace('"heads"', '"arg_nodes":[0],"heads"'), "output": SAVED.replace("[[1,0,0]]", "[[1,7,0]]"),
    "claimed outputs": SAVED.replace('"heads":[[1,0,0]]', '"node_row_ptr":[0,1,9],"heads":[[1,7,0]]'),
    "long name": SAVED.replace("tanh", "t" * 10**6), "version": SAVED.replace("[0,0,0]", f"[0,0,{2**40}]"),
    "surrogate": SAVED.replace("tanh", "\\ud800"), "graph attributes": SAVED.replace('"heads"', '"attrs":[1],"heads"'),
    "marks": SAVED.replace('"name":"t"', '"name":"t","attrs":{"__echo_recompute__":"7","__echo_gradient__":"a"}'),
}  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("command", ARGUMENTS)
@pytest.mark.parametrize("bad", BAD_FILES)
def test_bad_files_are_one_line(tmp_path: Path, command: str, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, content = tmp_path / "file.json", BAD_FILES[bad]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    lacks_shapes = command == "profile " and bad in ("claimed outputs", "marks")  # MXNet loads these symbols
    check_line([*command.split(), str(path), *ARGUMENTS[command]], capsys, 2 if lacks_shapes else 1)


@pytest.mark.parametrize("command", ARGUMENTS)
@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "missing", "loop"])
def test_path_without_regular_file_is_one_line(
    tmp_path: Path, command: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind != "missing":
        path.symlink_to("/dev/zero" if kind == "device" else path)
    check_line([*command.split(), str(path), *ARGUMENTS[command]], capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*command.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: mxecho {command} ")
    assert command == "cache" or f"\n    mxecho {command} " in said or f"\n    mxecho {command}\n" in said


def test_help_lists_all_commands_with_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    said = capsys.readouterr().out.split("Commands:")[1]
    assert [line.split()[0] for line in said.splitlines() if line] == [
        command for command in COMMANDS if " " not in command
    ]
    assert "..." not in said


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom echo.cli.main import main\nassert main(['plan', '--help']) == 0\n"
        "print({'numpy', 'mxnet', 'rich', 'echo.plans.plan', 'echo.runtime.api'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profile"], "Missing argument"), (["fly"], "No such command 'fly'"), (["doctor", "a"], "unexpected extra"),
        (["plan", "a.json", "x=1", "--bugdet", "1"], "No such option"), (["profile", "a", "--budgets", "x"], "budgets"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_a_command_line_that_makes_no_sense(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Usage: mxecho ")
    assert said in shown


@pytest.mark.parametrize(
    ("words", "now"),
    [
        (["show", "plan.json"], "show: this command is now mxecho plan --load FILE"),
        (["why", "plan.json", "t", "--json"], "why: this command is now mxecho plan SYMBOL SHAPES --why NAME"),
        (["compare", "a.json", "--help"], "compare: this command is now mxecho profile --compare"),
        (["diff", "a.json", "b.json"], "diff: this command is now mxecho profile FILE --diff FILE"),
        (["frontier"], "frontier: this command is now mxecho profile --frontier"),
        (["plan", "a.json", "x=1", "--trace", "f"], "--trace: this option is now --dump FOLDER"),
        (["run", "--trace", "f", "a.py"], "--trace: this option is now --dump FOLDER"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_old_commands_and_options_name_the_new_ones(
    words: list[str], now: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_line(words, capsys, 2) == f"mxecho: {now}"


def test_missing_files_are_named_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "missing.json")
    load = ["plan", "--load"]
    for words in (["plan", path, "data=2,3"], ["profile", path], [*load, path], ["schedule", path, "--budget", "0.5"]):
        assert check_line(words, capsys) == f"mxecho: {path}: No such file or directory"
    assert check_line([*load, str(tmp_path)], capsys) == (
        f"mxecho: {tmp_path}: expected a regular file, got a directory"
    )


def test_commands_leave_garbage_collection_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert gc.isenabled()
    assert main.main(["cache", "show"]) == 0
    assert gc.isenabled()


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    import echo

    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"mxnet-echo {echo.__version__}, fused operators on the CPU use ")


def test_shells_complete_commands() -> None:
    variables = {**os.environ, "_MXECHO_COMPLETE": "complete_bash", "COMP_WORDS": "mxecho pro", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "echo"], env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["profile"]


def test_misspelt_variables_are_told_once_by_each_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ONCE.forget()
    monkeypatch.setenv("ECHO_MEMORY_BUGDET", "6GB")
    monkeypatch.setenv("ECHO_SERVER_PORT", "7")  # of another program's
    assert main.main(["cache", "show"]) == 0
    assert capsys.readouterr().err == (
        "mxecho: ECHO_MEMORY_BUGDET is no variable of echo's and changes nothing: did you mean ECHO_MEMORY_BUDGET?\n"
    )
    assert main.main(["cache", "show"]) == 0
    assert capsys.readouterr().err == ""
    ONCE.forget()
