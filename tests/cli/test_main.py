"""Whatever the command line is given, an error is one line on standard error, and never a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import mxnet as mx
import pytest

from echo.cli import main

pytestmark = pytest.mark.usefixtures("cheap_planning")
ARGUMENTS = {
    "plan": ["x=2,3"], "schedule": ["--budget", "1GB"], "show": [], "why": ["t"], "profile": ["x=2,3"],
    "profile ": [],  # one that was saved
}  # fmt: skip
SAVED = (
    '{"nodes":[{"op":"null","name":"x","inputs":[]},{"op":"tanh","name":"t","inputs":[[0,0,0]]}],'
    '"arg_nodes":[0],"heads":[[1,0,0]]}'
)
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


@pytest.mark.parametrize("command", ARGUMENTS)
@pytest.mark.parametrize("bad", BAD_FILES)
def test_bad_files_are_one_line(tmp_path: Path, command: str, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, content = tmp_path / "file.json", BAD_FILES[bad]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    check_line([command.strip(), str(path), *ARGUMENTS[command]], capsys)


@pytest.mark.parametrize("command", ARGUMENTS)
@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "missing", "loop"])
def test_what_is_no_file_is_one_line(
    tmp_path: Path, command: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind != "missing":
        path.symlink_to("/dev/zero" if kind == "device" else path)
    check_line([command.strip(), str(path), *ARGUMENTS[command]], capsys)


@pytest.mark.parametrize("shape", ["x", "=2", "x=-1,2", "x=1e3", "x=99999999999999999999,2", "x=2147483647,2147483647"])
def test_bad_shapes_are_one_line(tmp_path: Path, shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file.json").write_text(SAVED)
    check_line(["plan", str(tmp_path / "file.json"), shape], capsys)


def test_a_plan_that_cannot_be_saved_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8))
    mx.sym.MakeLoss(mx.sym.sum(hidden)).save(str(tmp_path / "model.json"))
    check_line(["plan", str(tmp_path / "model.json"), "data=4,8", "--no-fuse", "--save", str(tmp_path)], capsys)


def test_fuse_is_an_option_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given: list[object] = []

    def plan(_: object, **options: object) -> str:
        given.append(options["fuse"])
        return "a plan"

    monkeypatch.setattr("echo.plan", plan)
    monkeypatch.setattr("echo.frontend.files.load_symbol", lambda path: path)
    for words in ([], ["--fuse", "memory"], ["--no-fuse"]):
        assert main.main(["plan", "model.json", "data=4,8", *words]) == 0
    assert given == [True, "memory", False]
    with pytest.raises(SystemExit):
        main.main(["plan", "model.json", "data=4,8", "--fuse", "time"])
    assert "argument --fuse: invalid choice: 'time' (choose from 'memory')" in capsys.readouterr().err


def check_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(("echo: planning", "["))]
    assert len(lines) == 1
    assert lines[0].startswith("mxecho: ")
    assert len(lines[0]) < 1100


def test_a_profile_of_a_symbol_and_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    symbol, saved = tmp_path / "net-symbol.json", tmp_path / "profile.json"
    network = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="enc_fc"), name="enc_tanh")
    mx.sym.SoftmaxOutput(network, name="loss").save(str(symbol))
    words = ["profile", str(symbol), "data=4,8", "loss_label=4", "--compare", "echo,mirror"]
    assert main.main([*words, "--by", "^enc", "--save", str(saved)]) == 0
    first = capsys.readouterr().out
    assert [" stock " in first, " echo " in first, " mirror " in first, "│ enc " in first] == [True] * 4
    assert main.main(["profile", str(saved), "--by", "^enc"]) == 0
    assert capsys.readouterr().out == first
    assert main.main(["profile", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(saved.read_text())
    for more in (["--run"], ["--budgets", "3"], ["--compare", "mirror"], ["--memory-budget", "1MB"], ["--no-fuse"]):
        check_line(["profile", str(saved), *more], capsys)


def test_pages_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    symbol = tmp_path / "net-symbol.json"
    hidden = mx.sym.var("data")
    for layer in range(6):
        hidden = mx.sym.LayerNorm(mx.sym.tanh(mx.sym.FullyConnected(hidden, num_hidden=256, name=f"fc{layer}")))
    mx.sym.SoftmaxOutput(hidden, name="loss").save(str(symbol))
    page, picture = tmp_path / "page.html", tmp_path / "picture.svg"
    words = ["profile", str(symbol), "data=64,256", "loss_label=64", "--budgets", "3"]
    assert main.main([*words, "--html", str(page), "--picture", str(picture), "--title", "my net"]) == 0
    for path in (page, picture):
        assert "my net" in path.read_text(encoding="utf-8")
    assert "What other budgets buy" in page.read_text(encoding="utf-8")
    capsys.readouterr()
    check_line([*words, "--picture", str(tmp_path / "picture.bmp")], capsys)
    check_line([*words[:-1], "-3"], capsys)


@pytest.mark.parametrize("words", [["--by", "("], ["--compare", "torch"], ["--max-overhead", "many"]], ids=str)
def test_bad_options_of_a_profile_are_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.json").write_text(SAVED)
    check_line(["profile", str(tmp_path / "file.json"), "x=2,3", *words], capsys)
