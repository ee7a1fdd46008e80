"""``ECHO_TRACE``: the stages of a planning as text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import echo
from benchmarks.models import SMALL
from echo.cli import main
from echo.errors import EchoError, OptionError
from echo.passes.select import Select
from echo.planning.service import Planner
from echo.plans.options import TRACE_VARIABLE
from echo.runtime import find
from tests.fused_models import EXAMPLES

MODEL = SMALL["lm"]()
BASE = ["differentiate", "candidates", "partition", "overhead", "select", "rewrite", "confirm", "explain"]


def traced(folder: Path, monkeypatch: pytest.MonkeyPatch, model: Any = MODEL, **options: object) -> dict[str, str]:
    monkeypatch.setattr(find, "PLANNER", Planner())
    monkeypatch.setenv(TRACE_VARIABLE, str(folder))
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
def test_what_was_chosen_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(OptionError, match=f"{TRACE_VARIABLE}: expected a folder to write to, got "):
        traced(tmp_path / "file", monkeypatch)


@pytest.mark.usefixtures("cheap_planning")
def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "PLANNER", Planner())
    monkeypatch.setenv(TRACE_VARIABLE, str(tmp_path / "variable"))
    path = tmp_path / "model-symbol.json"
    MODEL.symbol.save(str(path))
    shapes = [f"{name}={','.join(map(str, shape))}" for name, shape in MODEL.shapes.items()]
    assert main.main(["plan", str(path), *shapes, "--trace", str(tmp_path / "trace")]) == 0
    assert list((tmp_path / "trace").glob("*-plan.txt"))
    assert not (tmp_path / "variable").exists()
    assert os.environ[TRACE_VARIABLE] == str(tmp_path / "variable")
