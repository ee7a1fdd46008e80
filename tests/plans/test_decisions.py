"""The sums of a plan's memory, and which near-misses the user is told of."""

from __future__ import annotations

import pytest

from echo.plans.decisions import KEPT, WORKSPACES, Memory, Missed, near_misses


@pytest.mark.parametrize(("static", "kept", "total"), [({}, 0, 100), ({"weights": 7, KEPT: 5}, 5, 112)])
def test_sums(static: dict[str, int], kept: int, total: int) -> None:
    memory = Memory(planned=100, live_peak=80, static=static, at_peak={}, layers={})
    assert (memory.kept, memory.chosen, memory.total) == (kept, 100 + kept, total)


def test_workspaces_are_no_choice_of_the_plan() -> None:
    """They follow from the fused operators, whatever runs again."""
    memory = Memory(100, 0, {"weights": 7, WORKSPACES: 5}, {}, {})
    assert (memory.workspaces, memory.chosen, memory.total) == (5, 100, 112)


def test_near_misses_come_by_their_reasons_the_most_frequent_first() -> None:
    reasons = ["a", "b", "b", "c", "c", "c", "d", "quiet"]
    missed = [
        Missed(number, f"n{number}", "gru_cell", reason, reason == "quiet") for number, reason in enumerate(reasons)
    ]
    assert [[each.node for each in group] for group in near_misses(missed)] == [[3, 4, 5], [1, 2], [0]]
    assert near_misses(missed[-1:]) == []
