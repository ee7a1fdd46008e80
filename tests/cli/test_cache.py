"""`mxecho cache show` and `mxecho cache clear`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from echo.cli import main
from echo.cli.cache import rows_of
from echo.system.files import PLANS, TIMES, Kept
from tests.cli.models import check_line


def test_cached_plans_are_shown_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ECHO_CACHE_DIR", str(folder))
    assert main.main(["cache", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(folder), "kinds": []}
    (folder / "plans").mkdir(parents=True)
    (folder / "plans" / f"{'0' * 40}.json").write_bytes(b"x" * 10**6)
    (folder / "mine.txt").touch()
    assert main.main(["cache", "show"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{folder}: 1 files, 1.0 MB", "  plans: 1 files, 1.0 MB, 0 seconds to 0 seconds old",
    ]  # fmt: skip
    assert main.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"{folder}: removed 1 files, 1.0 MB\n"
    assert main.main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(folder), "removed": 0, "bytes": 0}
    assert (folder / "mine.txt").exists()


def test_rows_are_kinds_with_ages() -> None:
    files = [Kept(Path("a"), TIMES, 3, 5.0), Kept(Path("b"), PLANS, 7, 10.0), Kept(Path("c"), PLANS, 1, 40.0)]
    assert rows_of(files, 100.0) == [
        {"kind": TIMES, "files": 1, "bytes": 3, "newest_seconds": 95.0, "oldest_seconds": 95.0},
        {"kind": PLANS, "files": 2, "bytes": 8, "newest_seconds": 60.0, "oldest_seconds": 90.0},
    ]


def test_ages_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    files = tuple(Kept(Path("a"), TIMES, 0, -written) for written in (7200.0, 86400.0 * 3))
    monkeypatch.setattr("echo.system.files.kept", lambda _: files)
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert main.main(["cache", "show"]) == 0
    assert "2 hours to 3 days old" in capsys.readouterr().out


def test_a_folder_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / "file"))
    assert "Not a directory" in check_line(["cache", "show"], capsys)
