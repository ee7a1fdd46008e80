"""Decisions in groups: nothing is lost, and one alone keeps its words."""

from __future__ import annotations

from echo.plans.decisions import RECOMPUTE, STASH, Decision
from echo.report.decisions import Group, groups


def _decision(name: str, action: str = STASH, reason: str = "", size: int = 10) -> Decision:
    return Decision(0, name, "tanh", 0, action, size, 0.5, reason)


def test_names_and_reasons_that_differ_in_numbers_are_one_row() -> None:
    decisions = [_decision(f"cell_t{i}_out", RECOMPUTE, f"read by {i} gradients") for i in range(12)]
    assert groups(decisions) == [Group("cell_t*_out", "tanh", RECOMPUTE, "read by 0 to 11 gradients", 12, 120, 6.0)]
    decisions = [_decision(f"t{i}", reason=f"read by 2 gradients; computed again from fc{i}, x") for i in (3, 7)]
    assert groups(decisions)[0].reason == "read by 2 gradients; computed again from fc*, x"


def test_what_differs_stays_apart_and_the_largest_is_first() -> None:
    decisions = [
        _decision("a1"), _decision("a2", RECOMPUTE), _decision("b7", size=99, reason="7 of them"), _decision("a3"),
    ]  # fmt: skip
    found = groups(decisions)
    assert [(group.name, group.action, group.count) for group in found] == [
        ("b7", STASH, 1), ("a*", STASH, 2), ("a2", RECOMPUTE, 1),
    ]  # fmt: skip
    assert found[0].reason == "7 of them"
    assert sum(group.bytes for group in found) == sum(each.bytes for each in decisions)
    assert groups([]) == []
