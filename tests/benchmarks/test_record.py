"""Names on the command line of a benchmark."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import record
from benchmarks.record import asked


def test_names_are_those_that_are_asked_for_or_all() -> None:
    assert asked(["b"], "abc") == ["b"]
    assert asked([], {"a": 1, "b": 2}) == ["a", "b"]


def test_an_unknown_name_ends_the_program() -> None:
    with pytest.raises(SystemExit, match="error: expected names out of a, b, got 'x'"):
        asked(["a", "x"], ["a", "b"])


def test_a_damaged_file_ends_the_program_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(record, "commit", lambda: "unknown")
    record.save("some", [{"model": "a"}])
    assert record.load("some")["rows"] == [{"model": "a"}]
    assert [path.name for path in tmp_path.iterdir()] == ["some.json"]
    (tmp_path / "some.json").write_text('{"rows": [')
    with pytest.raises(SystemExit, match=r"error: .*some\.json is damaged: "):
        record.load("some")


def test_committed_results_are_those_of_git_not_of_the_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path = tmp_path / "project"
    tmp_path.mkdir()
    record.commit.cache_clear()

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a", *arguments], check=True,
                       capture_output=True)  # fmt: skip

    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    record.save("some", [{"model": "before"}])
    assert record.committed("some")["rows"] == [{"model": "before"}], "without git, those of the file"
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "results")
    record.save("some", [{"model": "later"}])
    assert record.committed("some")["rows"] == [{"model": "before"}]
    record.commit.cache_clear()
    assert not record.commit().endswith("-dirty"), "results are no code"
    (tmp_path / "code.py").write_text("")
    git("add", ".")
    record.commit.cache_clear()
    assert record.commit().endswith("-dirty")
    path = tmp_path.parent / "out" / "some.json"
    assert record.save("some", [{"model": "of no commit"}]) == path
    assert record.load("some")["rows"] == [{"model": "later"}]
    monkeypatch.setenv("DIRTY", "1")
    assert record.save("some", [{"model": "asked for"}]) == tmp_path / "results" / "some.json"
    record.commit.cache_clear()


ROOT = record.RESULTS.parents[1]
NO_HELP = {
    "gpu_check",
    "gpu_sanitizer",
    "converted_mxnet",
    "sockeye_symbol",
}  # the first has its own, scripts start the others
SCRIPTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in record.RESULTS.parent.rglob("*.py")
    if re.search(r"(parser|named|line)\(__doc__", path.read_text())
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_tells_what_the_script_measures(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "torch" in script:
        pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.delitem(sys.modules, script, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(script, run_name="__main__", alter_sys=False)
    assert ended.value.code == 0
    assert f"python -m {script.removesuffix('.__main__')}" in capsys.readouterr().out


def test_all_scripts_have_a_help() -> None:
    ends = [path for path in record.RESULTS.parent.rglob("*.py") if 'if __name__ == "__main__"' in path.read_text()]
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ends if path.stem not in NO_HELP}
    assert len(ends) == len(paths) + len(NO_HELP)
    assert paths == set(SCRIPTS)
