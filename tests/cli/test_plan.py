"""`mxecho plan`: its options for `echo.plan`, and its output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest

import echo
from echo.cli import main
from echo.plans.difference import difference, difference_rows
from echo.plans.plan import Plan
from tests.cli.models import SAVED, SHAPES, check_line, network
from tests.plans.test_plan import plan as a_plan

pytestmark = pytest.mark.usefixtures("cheap_planning")


@pytest.mark.parametrize("shape", ["x", "=2", "x=-1,2", "x=1e3", "x=99999999999999999999,2", "x=2147483647,2147483647"])
def test_bad_shapes_are_one_line(tmp_path: Path, shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file.json").write_text(SAVED)
    check_line(["plan", str(tmp_path / "file.json"), shape], capsys, 2)


def test_plan_saved_to_a_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_line(["plan", network(tmp_path), *SHAPES, "--no-fuse", "--save", str(tmp_path)], capsys, 2)


def test_fuse_is_an_option_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given: list[object] = []

    def plan(_: object, **options: object) -> Plan:
        given.append(options.get("fuse", True))
        return a_plan()

    monkeypatch.setattr("echo.plan", plan)
    monkeypatch.setattr("echo.frontend.symbols.load_symbol", lambda path: mx.sym.var("data"))
    for words in ([], ["--fuse", "memory"], ["--no-fuse"]):
        assert main.main(["plan", "model.json", "data=4,8", *words]) == 0
    assert given == [True, "memory", False]
    assert main.main(["plan", "model.json", "data=4,8", "--fuse", "time"]) == 2
    assert "mxecho: --fuse: expected memory, or one of 1, true, " in capsys.readouterr().err
    assert main.main(["plan", "model.json", "data=4,8", "--fuse", "memory", "--no-fuse"]) == 2
    assert capsys.readouterr().err == "mxecho: expected --no-fuse or --fuse memory, got both\n"
    assert main.main(["plan", "model.json", "data=4,8", "--exact", "--fuse", "1"]) == 2
    assert capsys.readouterr().err == "mxecho: expected --exact or --fuse 1, got both\n"
    assert main.main(["plan", "model.json", "data=4,8", "--no-fuse", "--fuse", "0"]) == 2
    assert capsys.readouterr().err == "mxecho: expected --no-fuse or --fuse 0, got both\n"


def test_a_plan_is_saved_shown_and_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = str(tmp_path / "plan.json")
    words = ["plan", network(tmp_path), *SHAPES, "--no-fuse", "--max-overhead", "none", "--save", saved]
    assert main.main(words) == 0
    first = capsys.readouterr().out
    plan = echo.Plan.load(saved)
    assert first.startswith(f"{plan}\npeak of the process, predicted for a Module: ")
    assert main.main(["plan", "--load", saved]) == 0
    assert capsys.readouterr().out == first, "a plan says the same when it is loaded"
    assert main.main([*words, "--why", "tanh3"]) == 0
    answer = capsys.readouterr().out
    assert answer.startswith("tanh3:0 (tanh, "), "the answer is printed alone"
    assert "instead: " in answer, "what the opposite costs"
    assert main.main(["plan", "--load", saved, "--why", "tanh3", "--why", "tanh4"]) == 0
    assert capsys.readouterr().out == f"{plan.why('tanh3')}\n{plan.why('tanh4')}\n"
    assert "no gradient reads" in check_line(["plan", "--load", saved, "--why", "nowhere"], capsys, 2)


def test_json_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "plan.json"
    words = ["plan", network(tmp_path), *SHAPES, "--no-fuse", "--max-overhead", "none", "--save", str(saved), "--json"]
    assert main.main([*words, "--why", "tanh3"]) == 0
    value = json.loads(capsys.readouterr().out)
    (answer,) = value.pop("why")
    assert answer["decision"]["name"] == "tanh3"
    assert answer["alternative"]["alone"]["planned"] > 0
    peaks = value["process_peak"]
    assert {name: parts["planned"] for name, parts in peaks.items()} == {
        "stock": value["before"]["planned"], "echo": value["after"]["planned"]
    }  # fmt: skip
    plan = {name: item for name, item in value.items() if name != "process_peak"}
    assert echo.Plan.from_json(plan) == echo.Plan.load(saved)
    assert main.main(["plan", "--load", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == value
    assert main.main(["plan", "--load", str(saved), "--why", "tanh3", "--json"]) == 0
    assert [each["decision"] for each in json.loads(capsys.readouterr().out)["why"]] == [answer["decision"]]


def test_diff_shows_the_changes_to_a_saved_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    none, all_of_it = str(tmp_path / "none.json"), str(tmp_path / "all.json")
    words = ["plan", network(tmp_path), *SHAPES, "--no-fuse"]
    assert main.main([*words, "--policy", "none", "--save", none]) == 0
    capsys.readouterr()
    assert main.main([*words, "--max-overhead", "none", "--save", all_of_it, "--diff", none]) == 0
    made = capsys.readouterr().out
    this, other = Plan.load(all_of_it), Plan.load(none)
    assert made == f"{difference(this, other)}\n"
    assert "recomputed by one plan only" in made
    assert main.main(["plan", "--load", all_of_it, "--diff", none]) == 0
    assert capsys.readouterr().out == made
    assert main.main(["plan", "--load", all_of_it, "--diff", none, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == difference_rows(this, other)


def test_diff_reads_the_other_plan_before_anything_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(echo, "plan", lambda *_, **__: pytest.fail("planned"))
    words = ["plan", network(tmp_path), *SHAPES]
    assert "nowhere.json" in check_line([*words, "--diff", str(tmp_path / "nowhere.json")], capsys)
    assert "is not a plan" in check_line([*words, "--diff", words[1]], capsys)
    both = [*words, "--diff", "plan.json", "--why", "tanh0"]
    assert "expected one of --why and --diff, got both" in check_line(both, capsys, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.json"], "expected no symbol next to a saved plan, got 'model.json'"),
        (["--policy", "echo"], "--policy is for a symbol, not for a saved plan (--load)"),
        (["--no-fuse"], "--no-fuse is for a symbol"),
        (["--fuse", "memory"], "--fuse is for a symbol"),
        (["--max-planning", "3"], "--max-planning is for a symbol"),
        (["--save", "other.json"], "--save is for a symbol"),
    ],
    ids=str,
)
def test_saved_plan_with_words_for_a_symbol_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in check_line(["plan", *words, "--load", "plan.json"], capsys, 2)


@pytest.mark.parametrize("words", [[], ["model.json"], ["--why", "tanh0"]], ids=str)
def test_plan_without_symbol_or_shapes_names_both_ways(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected a symbol and shapes of its inputs" in check_line(["plan", *words], capsys, 2)


def test_why_of_a_name_that_is_no_node_is_told_before_anything_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(echo, "plan", lambda *_, **__: pytest.fail("planned"))
    words = ["plan", network(tmp_path), *SHAPES, "--save", str(tmp_path / "p.json"), "--why", "tanh_0"]
    assert "--why tanh_0: the symbol has no node of this name; did you mean tanh0" in check_line(words, capsys, 2)


def test_plan_is_saved_before_a_name_that_is_no_feature_map_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "p.json"
    words = ["plan", network(tmp_path), *SHAPES, "--save", str(saved), "--why", "fc0_weight"]
    assert "no gradient reads a feature map named 'fc0_weight'" in check_line(words, capsys, 2)
    assert echo.load_plan(saved).decisions


def test_plan_takes_max_planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    plan = echo.plan

    def planned(*args: Any, **options: Any) -> Plan:
        given.append(options["max_planning"])
        return plan(*args, **options)

    monkeypatch.setattr(echo, "plan", planned)
    for text in ("none", "7.5"):
        assert main.main(["plan", network(tmp_path), *SHAPES, "--max-planning", text, "--why", "tanh0"]) == 0
    assert given == [None, 7.5]


def test_why_of_a_node_that_echo_made_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of fused operators have names such as ``fc0_echo_steps_echo0``, which the symbol has not."""
    monkeypatch.setattr(echo, "plan", lambda *_, **__: pytest.fail("planned"))
    with pytest.raises(pytest.fail.Exception, match="planned"):
        main.main(["plan", network(tmp_path), *SHAPES, "--why", "fc0_echo_steps_echo0"])
