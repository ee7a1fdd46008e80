"""`mxecho profile`."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import pytest

from echo.cli import main
from echo.cli.profile import compared, render_comparison
from echo.report.usage import PROCESS
from tests.cli.models import SAVED, SHAPES, check_line, network
from tests.report.profiles import made_up

pytestmark = pytest.mark.usefixtures("cheap_planning")
PROFILE = made_up(40)


def test_a_profile_of_a_symbol_and_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    symbol, saved = tmp_path / "net-symbol.json", tmp_path / "profile.json"
    net = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="enc_fc"), name="enc_tanh")
    mx.sym.SoftmaxOutput(net, name="loss").save(str(symbol))
    words = ["profile", str(symbol), "data=4,8", "loss_label=4"]
    assert main.main([*words, "--by", "^enc", "--save", str(saved)]) == 0
    first = capsys.readouterr().out
    assert [" stock " in first, " echo " in first, "│ enc " in first] == [True] * 3
    assert main.main(["profile", str(saved), "--by", "^enc"]) == 0
    assert capsys.readouterr().out == first
    assert main.main(["profile", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(saved.read_text())
    for more in (
        ["--run"],
        ["--budgets", "3"],
        ["--compare"],
        ["--policy", "echo"],
        ["--frontier"],
        ["--memory-budget", "1MB"],
        ["--no-fuse"],
        ["--optimizer-states", "1"],
    ):
        assert f"{more[0]} is for a symbol" in check_line(["profile", str(saved), *more], capsys, 2)


def test_optimizer_states_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [network(tmp_path), *SHAPES, "--optimizer-states", "2"]
    assert main.main(["profile", *words]) == 0
    assert "│ optimizer states " in capsys.readouterr().out
    assert main.main(["plan", *words]) == 0
    assert "│ optimizer states " in capsys.readouterr().out
    for command in ("profile", "plan"):
        assert "--optimizer-states: expected" in check_line([command, *words[:-1], "-1"], capsys, 2)


def test_pages_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture, segment = (tmp_path / name for name in ("page.html", "picture.svg", "segment.svg"))
    words = ["profile", network(tmp_path), *SHAPES, "--budgets", "3"]
    files = ["--html", str(page), "--picture", str(picture), "--segment", str(segment)]
    assert main.main([*words, *files, "--title", "my net"]) == 0
    for path in (page, picture, segment):
        assert "my net" in path.read_text(encoding="utf-8")
    assert "What other budgets buy" in page.read_text(encoding="utf-8")
    capsys.readouterr()
    check_line([*words, "--picture", str(tmp_path / "picture.bmp")], capsys, 2)
    check_line([*words[:-1], "-3"], capsys, 2)


def test_profile_writes_trace_snapshot_and_profile_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, snapshot, saved = (tmp_path / name for name in ("trace.json", "snapshot.pickle", "profile.json"))
    words = ["profile", network(tmp_path), *SHAPES, "--trace", str(trace), "--torch-snapshot", str(snapshot)]
    assert main.main([*words, "--save", str(saved)]) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    assert len(pickle.loads(snapshot.read_bytes())["device_traces"]) == 2
    capsys.readouterr()
    assert main.main(["profile", str(saved), "--diff", str(saved)]) == 0
    assert "of it planned by MXNet" in capsys.readouterr().out
    assert main.main(["profile", str(saved), "--diff", str(saved), "--json"]) == 0
    assert {row["by"] for row in json.loads(capsys.readouterr().out)} == {"total", "kind", "layer"}
    check_line(["profile", str(saved), "--diff", str(trace)], capsys)
    assert "expected one of --compare, " in check_line(["profile", str(saved), "--diff", "a", "--compare"], capsys, 2)


def test_a_picture_that_cannot_be_is_refused_before_anything_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echo.profile", None)
    words = ["profile", network(tmp_path), *SHAPES, "--picture", "memory.txt"]
    assert "expected a picture NAME.png or NAME.svg, got 'memory.txt'" in check_line(words, capsys, 2)


def test_a_folder_that_is_not_there_is_told_before_anything_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echo.profile", None)
    monkeypatch.setattr("echo.plan", None)
    for command, option in (("profile", "--html"), ("profile", "--segment"), ("plan", "--save")):
        words = [command, network(tmp_path), *SHAPES, option, str(tmp_path / "none" / "file.svg")]
        assert f"there is no folder {tmp_path}/none" in check_line(words, capsys, 2)


@pytest.mark.parametrize("words", [["--by", "("], ["--max-planning", "long"], ["--max-overhead", "many"]], ids=str)
def test_bad_options_of_a_profile_are_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.json").write_text(SAVED)
    check_line(["profile", str(tmp_path / "file.json"), "x=2,3", *words], capsys, 2)


def test_a_profile_of_another_version_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "profile.json"
    assert main.main(["profile", network(tmp_path), *SHAPES, "--save", str(saved)]) == 0
    saved.write_text(saved.read_text().replace("echo-profile-1", "echo-profile-0"))
    capsys.readouterr()
    assert "expected format echo-profile-1, got 'echo-profile-0'" in check_line(["profile", str(saved)], capsys)


def test_symbol_without_shapes_is_told_to_add_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = check_line(["profile", network(tmp_path)], capsys, 2)
    assert line.endswith("net-symbol.json is a symbol: expected shapes of its inputs, as data=128,50")


@pytest.mark.parametrize("command", ["plan", "profile"])
def test_shapes_before_the_symbol_are_bad_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = check_line([command, "data=64,784", "net-symbol.json"], capsys, 2)
    assert line == "mxecho: expected a symbol before the shapes of its inputs, got 'data=64,784'"


def test_all_graphs_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", network(tmp_path), *SHAPES, "--compare", "--no-fuse", "--max-overhead", "none"]
    assert main.main([*words, "--json"]) == 0
    rows = {row["graph"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ["stock", "mirror", "echo"]
    assert rows["echo"]["planned"] < rows["stock"]["planned"]
    assert main.main(words) == 0
    said = capsys.readouterr().out
    for row in rows.values():
        assert f"{row['planned'] / 2**20:,.1f}" in said
    assert "MXNet's mirroring" in said


def test_compared_graphs_have_the_bytes_of_their_usages() -> None:
    found = compared(PROFILE)
    assert [row["graph"] for row in found] == list(PROFILE.usages)
    for each in found:
        usage = PROFILE.usages[each["graph"]]
        assert (each["planned"], each["total"]) == (usage.planned, usage.total)
    assert found[0]["overhead"] == 0.0


def cells_of(text: str, graph: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if graph in line]
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_comparison_says_how_each_figure_changes_against_stock_mxnet() -> None:
    text = render_comparison(PROFILE)
    assert max(map(len, text.splitlines())) <= 100
    assert cells_of(text, "stock MXNet")[2::2] == ["", ""]
    stock, planned = PROFILE.usages["stock"], PROFILE.usages["echo"]
    assert cells_of(text, "│ echo ")[4] == f"{100 * (planned.total / stock.total - 1):+.0f} %"
    assert "growth" not in text, "nothing was measured"


def test_comparison_of_measured_graphs_shows_the_growth_of_the_process() -> None:
    usages = {**PROFILE.usages, "stock": replace(PROFILE.usages["stock"], measured={PROCESS: 7 * 10**6})}
    text = render_comparison(replace(PROFILE, usages=usages))
    assert max(map(len, text.splitlines())) <= 100
    assert cells_of(text, "stock MXNet")[-1] == "7.0"
    assert cells_of(text, "│ echo ")[-1] == "-"
