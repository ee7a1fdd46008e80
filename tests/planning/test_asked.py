"""The same question has the same answer, and any other one none."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from echo.cli import main
from echo.planning import asked
from echo.planning.plan_cache import keep, path_of
from echo.plans.decisions import Note, NoteKind
from echo.plans.plan import Plan
from tests.cli.models import SHAPES, network

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ECHO_TRACE", raising=False)
    return tmp_path / "cache" / "plans"


@pytest.fixture
def saved(tmp_path: Path, cheap_planning: None) -> tuple[str, Plan]:
    """A symbol's file, and the plan that `mxecho plan` gave and kept."""
    file, kept = network(tmp_path), str(tmp_path / "plan.json")
    assert main.main(["plan", file, *SHAPES, "--no-fuse", "--max-overhead", "none", "--save", kept]) == 0
    return file, Plan.load(kept)


def test_the_second_answer_needs_no_mxnet(saved: tuple[str, Plan], capsys: pytest.CaptureFixture[str]) -> None:
    file, plan = saved
    capsys.readouterr()
    words = ["plan", file, *reversed(SHAPES), "--no-fuse", "--max-overhead", "none"]
    program = f"import sys; from echo.cli.main import main; main({words!r}); assert 'mxnet' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{plan}\n")
    assert "peak of the process" in done.stdout
    assert done.stderr == ""


def test_another_question_has_no_answer(
    saved: tuple[str, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, words = Path(saved[0]), ["some", "words"]
    name = asked.name_of(file, words)
    asked.remember(name, saved[1])
    assert asked.answer(name) == saved[1]
    others = {asked.name_of(file, other) for other in (["some"], ["words", "some"], ["some words"])}
    for variable in ("MXNET_EXEC_NUM_TEMP", "ECHO_KERNELS_LEVEL", "OMP_NUM_THREADS"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "7")
            others.add(asked.name_of(file, words))
    with monkeypatch.context() as patch:
        patch.setattr(asked, "_library", lambda: "another MXNet")
        others.add(asked.name_of(file, words))
    file.write_text(file.read_text() + " ")
    others.add(asked.name_of(file, words))
    assert len(others) == 8
    assert name not in others
    assert all(asked.answer(other) is None for other in others)


def test_some_questions_are_not_answered_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(network(tmp_path))
    assert asked.name_of(file, [])
    assert asked.name_of(tmp_path / "missing", []) == asked.name_of(tmp_path, []) == ""
    with monkeypatch.context() as patch:
        patch.setenv("ECHO_TRACE", str(tmp_path))
        assert asked.name_of(file, []) == ""
    with monkeypatch.context() as patch:
        patch.setenv("MXNET_LIBRARY_PATH", str(tmp_path))
        assert asked.name_of(file, []) == "", "which library is there is not known"
    other = tmp_path / "other.json"
    other.write_text(file.read_text().replace("10901", "20000"))
    assert asked.name_of(other, []) == "", "MXNet warns of it each time"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert asked.name_of(file, []) == ""
    assert asked.answer("") is None


def test_plan_with_failures_is_not_kept(saved: tuple[str, Plan], folder: Path) -> None:
    for number, change in enumerate(
        ({"applied": "mirror"}, {"applied": "none"}, {"notes": (Note("it failed", NoteKind.FAILED),)})
    ):
        asked.remember(f"name{number}", dataclasses.replace(saved[1], **change))
        assert not path_of(f"name{number}").exists()
    asked.remember("", saved[1])
    assert not path_of("").exists()


def test_a_damaged_answer_is_found_out_anew(saved: tuple[str, Plan], caplog: pytest.LogCaptureFixture) -> None:
    asked.remember("name", saved[1])
    path_of("name").write_text("{}")
    assert asked.answer("name") is None
    assert "is ignored" in caplog.text


def test_an_answer_of_another_version_is_none(caplog: pytest.LogCaptureFixture) -> None:
    keep("other", asked._purpose("other"), {"plan": {"format": "echo-plan-0"}})
    assert asked.answer("other") is None
    assert "expected format" in caplog.text


def test_a_file_that_is_exchanged_meanwhile_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(network(tmp_path))
    names = iter(["before", "after"])
    monkeypatch.setattr(asked, "name_of", lambda *_: next(names))
    monkeypatch.setattr(asked, "remember", lambda *_: pytest.fail("remembered"))
    assert main.main(["plan", str(file), *SHAPES]) == 0
