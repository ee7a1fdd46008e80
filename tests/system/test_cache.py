"""Files of the cache: only those with echo's names are found, and removed."""

from __future__ import annotations

import os
from pathlib import Path

from echo.estimators.cost_table import CostTable
from echo.system.cache import OTHERS, PLANS, TIMES, delete, kept


def test_kinds_and_the_oldest_first(tmp_path: Path) -> None:
    table = CostTable("a device", tmp_path)
    table.add("one", 1e-3)
    assert table.save()
    (tmp_path / "plans").mkdir()
    plan = tmp_path / "plans" / f"{'ab' * 20}.json"
    plan.touch()
    os.utime(plan, (1, 1))
    for name in (f"{plan.name}x7_q.tmp", "notes.json", f"{'ab' * 20}.txt"):
        (tmp_path / "plans" / name).touch()
    (tmp_path / "plans" / f"{'cd' * 20}.json").symlink_to(plan)
    found = kept(tmp_path)
    assert found[0].path == plan
    assert sorted((each.kind, each.path.name) for each in found) == sorted([
        (PLANS, plan.name), (TIMES, table.path.name), (OTHERS, table.path.with_suffix(".lock").name),
        (OTHERS, f"{plan.name}x7_q.tmp"),
    ])  # fmt: skip
    plan.unlink()
    assert delete(found) == 3
    assert sorted(path.name for path in (tmp_path / "plans").iterdir()) == sorted(
        ["notes.json", f"{'ab' * 20}.txt", f"{'cd' * 20}.json"]
    )


def test_a_linked_folder_is_not_the_caches(tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", tmp_path / "other"
    for folder in (cache, other):
        folder.mkdir()
    (other / f"{'ab' * 20}.json").touch()
    (cache / "plans").symlink_to(other)
    assert kept(cache) == ()


def test_no_folder_is_an_empty_cache(tmp_path: Path) -> None:
    assert kept(tmp_path / "nowhere") == ()
