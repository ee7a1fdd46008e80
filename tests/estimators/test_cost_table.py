"""The table on disk is data: whatever is in the folder, a table opens, works and, where it can, saves."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from echo.estimators import cost_table
from echo.estimators.cost_table import BYTES_PER_SECOND, CostTable, Rates, Roofline, _purpose
from echo.estimators.operator_groups import OperatorGroup, Work
from echo.meter.timer import LAUNCH
from echo.system.files import cache_folder, replace

DEVICE = "a processor, 2 cores"


def test_saved_table_is_read_again(tmp_path: Path) -> None:
    table = CostTable(DEVICE, tmp_path)
    table.add("relu", 1e-5)
    table.add("custom", None)
    assert table.save()
    again = CostTable(DEVICE, tmp_path)
    assert again.get("relu") == 1e-5
    assert "custom" in again
    assert again.get("custom") is None
    assert "other" not in again
    assert len(again) == 2


def test_a_new_table_writes_no_file_until_something_was_added(tmp_path: Path) -> None:
    folder = tmp_path / "not yet there"
    assert CostTable(DEVICE, folder).save()
    assert not folder.exists()


def _saved(folder: Path, **seconds: float) -> CostTable:
    table = CostTable(DEVICE, folder)
    for signature, value in seconds.items():
        table.add(signature, value)
    assert table.save()
    return table


def _check_rebuilt(folder: Path) -> None:
    table = CostTable(DEVICE, folder)
    assert len(table) == 0
    table.add("tanh", 2e-5)
    assert table.save()
    assert CostTable(DEVICE, folder).get("tanh") == 2e-5


@pytest.mark.parametrize("damaged", [b"", b"{", b"\x80\x04\x95 a pickle is not read", b"[" * 100_000, b"[]", b"{}"])
def test_a_damaged_file_is_ignored_and_rebuilt(tmp_path: Path, damaged: bytes) -> None:
    path = _saved(tmp_path, relu=1e-5).path
    path.write_bytes(damaged)
    _check_rebuilt(tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"seconds": {}},
        {"seconds": [1.0], "points": {}},
        {"seconds": {"relu": -1.0}, "points": {}},
        {"seconds": {"relu": "1.0"}, "points": {}},
        {"seconds": {"relu": True}, "points": {}},
        {"seconds": {"relu": 10**400}, "points": {}},
        {"seconds": {"relu": 1e-5}, "points": []},
        {"seconds": {"relu": 1e-5}, "points": {"family": {"wide": 1.0}}},
        {"seconds": {"relu": 1e-5}, "points": {"family": {"1.0": None}}},
    ],
)
def test_fields_that_make_no_sense_are_ignored_even_under_a_digest(tmp_path: Path, value: dict[str, Any]) -> None:
    replace(_saved(tmp_path, relu=1e-5).path, _purpose(DEVICE), value)
    _check_rebuilt(tmp_path)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = _saved(tmp_path, relu=1e-5, tanh=2e-5).path
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            assert len(CostTable(DEVICE, tmp_path)) == 0
    path.write_bytes(whole)
    assert len(CostTable(DEVICE, tmp_path)) == 2


def test_each_device_has_its_own_table(tmp_path: Path) -> None:
    mine = _saved(tmp_path, relu=1e-5)
    other = CostTable("another processor", tmp_path)
    assert len(other) == 0
    assert other.path != mine.path
    # a file that was copied over from another machine
    other.path.write_bytes(mine.path.read_bytes())
    assert len(CostTable("another processor", tmp_path)) == 0


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    first, second = CostTable(DEVICE, tmp_path), CostTable(DEVICE, tmp_path)
    first.add("relu", 1e-5)
    second.add("tanh", 2e-5)
    assert first.save()
    assert second.save()
    both = CostTable(DEVICE, tmp_path)
    assert (both.get("relu"), both.get("tanh")) == (1e-5, 2e-5)
    # the one that saved last also knows what the other had found
    assert second.get("relu") == 1e-5


def _write_many(folder: str, writer: int) -> None:
    for number in range(20):
        table = CostTable(DEVICE, Path(folder))
        table.add(f"{writer}/{number}", 1e-6 * (number + 1))
        table.save()


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(str(tmp_path), writer)) for writer in range(3)]
    for process in writers:
        process.start()
    for process in writers:
        process.join(60)
    assert [process.exitcode for process in writers] == [0, 0, 0]
    assert len(CostTable(DEVICE, tmp_path)) == 60
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_leaves_the_table_in_memory(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        table = CostTable(DEVICE, tmp_path)
        table.add("relu", 1e-5)
        assert not table.save()
        assert table.get("relu") == 1e-5
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_cannot_exist_leaves_the_table_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    table = CostTable(DEVICE, tmp_path / "file" / "echo")
    table.add("relu", 1e-5)
    assert not table.save()
    assert table.get("relu") == 1e-5


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_impossible_seconds_are_refused(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(ValueError, match="expected a positive finite number"):
        CostTable(DEVICE, tmp_path).add("relu", seconds)


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("ECHO_CACHE_DIR", raising=False)
    assert cache_folder() == tmp_path / "home" / ".cache" / "echo"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "echo"
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert CostTable(DEVICE).path.parent == tmp_path / "own"


def test_provisional_times_are_marked_and_replaced(tmp_path: Path) -> None:
    table = CostTable(DEVICE, tmp_path)
    table.add("tanh", 3e-5, provisional=True)
    table.add("relu", 1e-5)
    table.add("sort", None, provisional=True)
    assert [table.is_provisional(name) for name in ("tanh", "relu", "sort", "other")] == [True, False, True, False]
    assert table.save()
    again = CostTable(DEVICE, tmp_path)
    assert [again.is_provisional(name) for name in ("tanh", "relu", "sort")] == [True, False, True]
    assert ("sort" in again, again.get("sort")) == (True, None)
    again.add("tanh", 2e-5)
    assert not again.is_provisional("tanh")
    assert again.save()
    last = CostTable(DEVICE, tmp_path)
    assert (last.get("tanh"), last.is_provisional("tanh"), last.is_provisional("sort")) == (2e-5, False, True)


def test_provisional_times_do_not_replace_what_another_process_measured_well(tmp_path: Path) -> None:
    busy, other = CostTable(DEVICE, tmp_path), CostTable(DEVICE, tmp_path)
    other.add("tanh", 2e-5)
    assert other.save()
    busy.add("tanh", 9e-5, provisional=True)
    assert busy.save()
    assert busy.get("tanh") == CostTable(DEVICE, tmp_path).get("tanh") == 2e-5
    assert not busy.is_provisional("tanh")


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = CostTable(DEVICE, tmp_path)
    table.add("tanh", 2e-5)
    table.add_point("family", 8, 2e-5)
    assert table.save()
    reads, original = [], cost_table.read
    monkeypatch.setattr(cost_table, "read", lambda *given: reads.append(given) or original(*given))
    tables = [CostTable(DEVICE, tmp_path) for _ in range(3)]
    assert len(reads) == 1
    tables[0].add("tanh", 9e-5)
    tables[0].add_point("family", 8, 9e-5)
    assert [(each.get("tanh"), each.points("family")[0][1]) for each in tables[1:]] == [(2e-5, 2e-5)] * 2
    assert tables[0].save()
    assert CostTable(DEVICE, tmp_path).get("tanh") == 9e-5
    assert tables[1].get("tanh") == 2e-5, "a table keeps what it has read"


def test_a_file_that_is_gone_or_damaged_is_not_remembered(tmp_path: Path) -> None:
    table = CostTable(DEVICE, tmp_path)
    table.add("tanh", 2e-5)
    assert table.save()
    assert len(CostTable(DEVICE, tmp_path)) == 1
    data = table.path.read_bytes()
    table.path.write_bytes(data.replace(b"2e-05", b"3e-05"))
    assert len(CostTable(DEVICE, tmp_path)) == 0
    table.path.unlink()
    assert len(CostTable(DEVICE, tmp_path)) == 0


MOVED = 1 << 20


def group(number: int, flops: float = 0.0, moved: float = MOVED) -> OperatorGroup:
    return OperatorGroup(number, 1, f"group {number}", ("op", number), Work(flops, moved), not flops, False, None)


def roofline(rate: float, count: int = 5, flops: float = 0.0) -> Roofline:
    """The roofline of a device on which every operator works at one rate, and the operator 0 at any."""
    groups = [group(number, flops * number, MOVED * number) for number in range(1, count + 1)]
    return Roofline([(group(0, flops), 1e-9), *((each, each.size / rate) for each in groups)])


@pytest.mark.parametrize("rate", [1e8, 1e10, 1e12])
@pytest.mark.parametrize("flops", [0.0, 1e9])
@pytest.mark.parametrize(
    ("times", "allowed"), [(0.45, False), (0.55, True), (1.0, True), (19.0, True), (22.0, False), (1e3, False)]
)
def test_roofline_by_rates_of_others_allows_half_to_twenty_times(
    times: float, allowed: bool, rate: float, flops: float
) -> None:
    tried = group(0, flops)
    seconds = times * tried.size / rate + (LAUNCH * 20 if times > 20 else 0.0)
    moving = [(group(number, 0.0, 1.0), 1.0 / 1e15) for number in range(20, 25)] if flops else []
    known = roofline(rate, flops=flops)
    if moving:  # products are not limited by their bytes here
        known = Roofline([*moving, *((group(n, flops * n), flops * n / rate) for n in range(1, 6))])
    assert known.allows(tried, seconds) is allowed


def test_roofline_of_one_fast_operator_among_slow_ones_is_theirs() -> None:
    slow = [(group(number), MOVED / 1e9) for number in range(1, 20)]
    known = Roofline([(group(0), MOVED / 1e13), *slow])
    assert not known.allows(group(0), MOVED / 1e13)
    assert all(known.allows(each, seconds) for each, seconds in slow)


def test_roofline_with_few_others_allows_what_other_devices_take() -> None:
    usual = MOVED / BYTES_PER_SECOND
    known = roofline(1e3, count=3)
    assert all(known.allows(group(0), times * usual) for times in (0.1, 1.0, 100.0))
    assert not known.allows(group(0), usual / 100)
    assert not known.allows(group(0), usual * 1000)


def test_launches_are_not_too_fast_for_the_roofline() -> None:
    assert roofline(BYTES_PER_SECOND).allows(group(0, moved=64), LAUNCH / 10)


def test_rates_without_measurements_are_constants() -> None:
    assert Rates().estimate(group(1)) == pytest.approx(LAUNCH + MOVED / BYTES_PER_SECOND)
