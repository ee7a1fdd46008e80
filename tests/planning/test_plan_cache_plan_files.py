"""Files of plans have names that depend on all that plans depend on; old ones make room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from echo import native
from echo.planning import plan_cache
from echo.planning.plan_cache import keep, key_of, path_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    return tmp_path / "plans"


def test_old_plans_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_MOST_FILES", 3)
    for number in range(5):
        keep(f"key{number}0", "test", {})
    assert len(list(folder.glob("*.json"))) == 3
    assert path_of("key40").exists()


def test_keep_beyond_the_bound_on_bytes_removes_the_least_recently_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_cache, "_MOST_BYTES", 2500)
    for number, key in enumerate(("first0", "second0", "third0")):
        keep(key, "test", {"text": "x" * 800})
        os.utime(path_of(key), (number, number))
    assert plan_cache.read("first0", "test") == {"text": "x" * 800}
    keep("fourth0", "test", {"text": "x" * 800})
    assert {path.stem for path in folder.glob("*.json")} == {"first0", "third0", "fourth0"}


def test_keep_lists_the_folder_for_one_name_of_sixteen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []
    monkeypatch.setattr(plan_cache, "_make_room", listed.append)
    for digit in "0123456789abcdef":
        keep(f"key{digit}", "test", {})
    assert listed == [folder]


def test_foreign_files_in_the_cache_are_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_MOST_FILES", 3)
    folder.mkdir()
    (folder / "a.json").mkdir()
    (folder / "b.json").symlink_to("nowhere")
    os.mkfifo(folder / "c.json")
    for number in range(5):
        keep(f"key{number}0", "test", {})
    assert path_of("key40").is_file()


def test_names_depend_on_every_part_and_on_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {key_of(parts) for parts in (["a", "b"], ["ab"], ["a", "b", ""], ["b", "a"])}
    monkeypatch.setattr(plan_cache, "_source", lambda: "other")
    names.add(key_of(["a", "b"]))
    assert len(names) == 5


def test_a_library_that_was_built_again_is_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is: an editable install has the libraries next to the sources of no package."""
    library = tmp_path / "libecho_planner.so"
    library.write_bytes(b"built")
    monkeypatch.setattr(native, "__path__", [*native.__path__, str(tmp_path)])
    texts = [plan_cache._source.__wrapped__()]
    library.write_bytes(b"built again")
    texts.append(plan_cache._source.__wrapped__())
    library.unlink()
    texts.append(plan_cache._source.__wrapped__())
    assert len(set(texts)) == 3
    built = {Path(line.split(" ")[0]).name for line in texts[2].split(";") if ".so " in line}
    assert built == {"libecho_counter.so", "libecho_hook.so", "libecho_kernels.so", "libecho_planner.so"}
