"""``ECHO_DEBUG=dump=FOLDER``: the stages of a planning as text."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import pytest

import echo
from benchmarks.models import SMALL
from echo.cli import main
from echo.errors import BudgetError, EchoError, OptionError, ShapeError
from echo.passes.pass_manager import run
from echo.passes.select import Select
from echo.pipeline import PIPELINE
from echo.planning.planner import Planner
from echo.plans.variables import DEBUG_VARIABLE
from echo.runtime import bind_plan
from tests.support.fused_models import EXAMPLES

MODEL = SMALL["lm"]()
BASE = ["differentiate", "find-candidates", "partition", "estimate-cost", "select", "rewrite", "confirm", "explain"]


def traced(folder: Path, monkeypatch: pytest.MonkeyPatch, model: Any = MODEL, **options: object) -> dict[str, str]:
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setenv(DEBUG_VARIABLE, f"check,dump={folder}")
    echo.plan(model.symbol, **options, **model.shapes)
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))}


@pytest.mark.usefixtures("cheap_planning")
def test_each_stage_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = traced(tmp_path / "a", monkeypatch, fuse=False, max_overhead=None)
    names = [name[4:-4] for name in texts]
    assert [name for name in names if name in BASE][: len(BASE)] == BASE
    assert "chosen" in names
    assert names[-1] == "plan"
    first = {name[4:-4]: text for name, text in reversed(texts.items())}
    assert first["differentiate"].startswith("training graph of ")
    assert "[backward]" in first["differentiate"]
    assert "recompute %" in first["select"]
    assert "__echo_recompute__" in first["rewrite"]
    seconds = (tmp_path / "a" / "seconds.tsv").read_text(encoding="utf-8").splitlines()
    stages = [line.split("\t")[1].replace(" ", "-") for line in seconds]
    assert stages == [name for name in names if name not in ("chosen", "plan")]
    assert traced(tmp_path / "b", monkeypatch, fuse=False, max_overhead=None) == texts, "also where a plan is on disk"


@pytest.mark.usefixtures("cheap_planning")
def test_trace_names_the_graphs_chosen_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs with fused operators and without, then the graph with masks as bits and without."""
    example = EXAMPLES["dropout"]()
    texts = traced(tmp_path / "a", monkeypatch, example, max_overhead=None)
    bases, masks = (text for name, text in texts.items() if name.endswith("chosen.txt"))
    assert sum(line.startswith("taken: ") for line in bases.splitlines()) == 1
    assert all(" bytes, " in line for line in bases.splitlines())
    assert masks == "taken: masks as bits\n"
    texts = traced(tmp_path / "b", monkeypatch, example, memory_budget=1.0)
    assert "rejected: masks as bits: a mask as bits takes time, and the budget is met without\n" in texts.values()


@pytest.mark.usefixtures("cheap_planning")
def test_a_stage_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(Select, "run", fail)
    with pytest.raises(EchoError, match="surprise"):
        traced(tmp_path, monkeypatch, fuse=False)
    (path,) = tmp_path.glob("*-select.txt")
    assert path.read_text() == "failed: RuntimeError: surprise\n"


@pytest.mark.usefixtures("cheap_planning")
def test_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=f"{DEBUG_VARIABLE}: dump: expected a folder to write to, got "):
        traced(tmp_path / "file", monkeypatch)


@pytest.mark.usefixtures("cheap_planning")
def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setenv(DEBUG_VARIABLE, f"dump={tmp_path / 'variable'}")
    path = tmp_path / "model-symbol.json"
    MODEL.symbol.save(str(path))
    shapes = [f"{name}={','.join(map(str, shape))}" for name, shape in MODEL.shapes.items()]
    assert main.main(["plan", str(path), *shapes, "--dump", str(tmp_path / "trace")]) == 0
    assert list((tmp_path / "trace").glob("*-plan.txt"))
    assert not (tmp_path / "variable").exists()
    assert os.environ[DEBUG_VARIABLE] == f"dump={tmp_path / 'variable'}"


@dataclass(frozen=True)
class Stage:
    """A pass made of a function."""

    name: str
    needs: tuple[type, ...]
    gives: type
    function: Callable[..., Any] = field(default=lambda *values: values)

    def run(self, *values: Any) -> Any:
        return self.function(*values)


def silent(_: str) -> None:
    """There is no watcher."""


LENGTH = Stage("length", (str,), int, len)
HALF = Stage("half", (int, str), float, lambda length, text: length / 2)


def test_values_are_handed_on_by_type() -> None:
    assert run([LENGTH, HALF], ["hello"], silent) == {str: "hello", int: 5, float: 2.5}


def test_empty_pipeline_gives_the_given_values() -> None:
    assert run([], ["a", 1], silent) == {str: "a", int: 1}


def test_given_values_are_not_computed_again() -> None:
    seen: list[str] = []
    assert run([LENGTH, HALF], ["hello", 7], seen.append) == {str: "hello", int: 7, float: 3.5}
    assert seen == ["half"]


def test_progress_names_every_pass() -> None:
    seen: list[str] = []
    run([LENGTH, HALF], ["hello"], seen.append)
    assert seen == ["length", "half"]


def test_missing_value_names_pass_and_type() -> None:
    with pytest.raises(EchoError, match=r"pass half needs int, str, which none of \[\] gave"):
        run([HALF], [], silent)
    with pytest.raises(EchoError, match=r"pass third needs float, which none of \['length'\] gave"):
        run([LENGTH, Stage("third", (float, int), float)], ["hello"], silent)


def test_wrong_type_names_pass_and_types() -> None:
    with pytest.raises(EchoError, match=r"expected a value of type int, got str \(in the stage bad\)"):
        run([Stage("bad", (str,), int, str.upper)], ["hello"], silent)


def test_failure_names_the_pass_and_those_before() -> None:
    def fail(_: int) -> float:
        raise ZeroDivisionError("by zero")

    stages = [LENGTH, Stage("broken", (int,), float, fail)]
    text = r"^ZeroDivisionError: by zero \(in the stage broken, after length\)$"
    with pytest.raises(EchoError, match=text) as caught:
        run(stages, ["hello"], silent)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_of_echos_own_names_them_too() -> None:
    def fail(_: int) -> float:
        raise ShapeError("no shape")

    with pytest.raises(ShapeError, match=r"^no shape \(in the stage broken, after length\)$") as caught:
        run([LENGTH, Stage("broken", (int,), float, fail)], ["hello"], silent)
    assert caught.value.stages == ("length", "broken")


def test_users_error_is_raised_unchanged() -> None:
    def fail(_: str) -> int:
        raise BudgetError(1, 2, "weights")

    with pytest.raises(BudgetError, match="budget of 1 bytes"):
        run([Stage("choosy", (str,), int, fail)], ["hello"], silent)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through(error: type[BaseException]) -> None:
    def fail(_: str) -> int:
        raise error

    with pytest.raises(error):
        run([Stage("slow", (str,), int, fail)], ["hello"], silent)


# The pipeline -------------------------------------------------------------------------------------------------


def test_every_stage_is_given_what_it_needs() -> None:
    from echo.passes.request import Request

    known: set[type] = {Request}
    for stage in PIPELINE:
        assert set(stage.needs) <= known, f"{stage.name} needs what no stage before it gives"
        assert stage.gives not in known, f"{stage.name} gives what was there"
        known.add(stage.gives)


def test_stages_have_names_of_their_own() -> None:
    names = [stage.name for stage in PIPELINE]
    assert len(set(names)) == len(names)


def test_stages_are_values() -> None:
    for stage in PIPELINE:
        assert type(stage)() == stage
        assert hash(type(stage)()) == hash(stage)
        assert repr(stage).startswith(type(stage).__name__)
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            type(stage)(colour="red")  # type: ignore[call-arg]
