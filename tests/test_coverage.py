"""Shares of rooms are counted over all their files, and held against floors."""

from __future__ import annotations

from tests.support.coverage import FLOORS, ROOT, File, below, by_room, never, shares, table

ONE = File("echo/planning/one.py", {1: True, 2: True, 3: False}, {(1, 2): True, (1, 3): False})
TWO = File("echo/planning/two.py", {1: True}, {})
OTHER = File("echo/plans/plan.py", {1: True}, {(1, 1): True})


def test_shares_are_those_of_all_files_of_a_room() -> None:
    rooms = by_room([OTHER, ONE, TWO])
    assert rooms == {"echo/planning": [ONE, TWO], "echo/plans": [OTHER]}
    assert shares(rooms["echo/planning"]) == [(75.0, 4), (50.0, 2)]
    assert [line.split() for line in table("Python", rooms).splitlines()[1:]] == [
        ["echo/planning", "2", "75.0", "%", "of", "4", "50.0", "%", "of", "2"],
        ["echo/plans", "1", "100.0", "%", "of", "1", "100.0", "%", "of", "1"],
        ["all", "3", "80.0", "%", "of", "5", "66.7", "%", "of", "3"],
    ]


def test_lines_never_run_are_named() -> None:
    assert list(never([ONE, TWO])) == ["echo/planning/one.py: lines 3; branches 1->3"]


def test_a_room_below_its_floor_is_named_and_one_that_is_gone_too() -> None:
    rooms = by_room([ONE, TWO])
    assert list(below(rooms, {"echo/planning": (75, 50)})) == []
    assert list(below(rooms, {"echo/planning": (76, 50)})) == ["echo/planning: 75.0 % of lines were run, expected 76 %"]
    assert len(list(below(rooms, {"echo/gone": (1, 1)}))) == 2


def test_floors_are_of_rooms_that_exist() -> None:
    assert all((ROOT / room).is_dir() for rooms in FLOORS.values() for room in rooms)
