"""The peak of a process as the sum of its parts."""

from __future__ import annotations

from echo.estimators.process import (
    CODE,
    HELD,
    HOLES,
    PLANNED,
    SEEN,
    SPACES,
    ProcessPeak,
    hole_bytes,
    process_peak,
    space_bytes,
)


def test_peak_of_parts_is_their_sum_without_empty_ones() -> None:
    peak = process_peak({HELD: 150, PLANNED: 80, SPACES: 0, CODE: 11})
    assert peak == ProcessPeak({HELD: 150, PLANNED: 80, CODE: 11})
    assert peak.total == 241


def test_peak_below_what_was_seen_gets_the_rest_as_a_part() -> None:
    peak = process_peak({HELD: 150, PLANNED: 80}, at_least=300)
    assert peak.parts[SEEN] == 70
    assert peak.total == 300


def test_peak_above_what_was_seen_stays() -> None:
    assert process_peak({HELD: 150, PLANNED: 80}, at_least=200).parts == {HELD: 150, PLANNED: 80}


def test_peak_with_a_part_that_was_seen_elsewhere_keeps_it() -> None:
    assert process_peak({HELD: 150, SEEN: 30}).parts == {HELD: 150, SEEN: 30}
    assert process_peak({HELD: 150, SEEN: 30}, at_least=200).parts == {HELD: 150, SEEN: 50}


def test_spaces_hold_the_largest_map_in_the_first_and_half_of_it_in_others() -> None:
    assert [space_bytes(64, spaces) for spaces in (0, 1, 2, 4)] == [0, 64, 96, 160]


def test_holes_are_a_fifth_of_planned_memory_that_is_allocated_at_each_step() -> None:
    assert (hole_bytes(400, dynamic=True), hole_bytes(400, dynamic=False)) == (80, 0)
    assert {HOLES, SPACES}.isdisjoint(process_peak({HOLES: 0, SPACES: 0}).parts)
