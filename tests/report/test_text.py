"""Tests of `echo.report.text`: more memory; measured; text."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

import pytest

import echo
from echo.plans.decisions import Memory, Note
from echo.plans.frontier import LEFT_OUT
from echo.plans.key import PlanKey
from echo.plans.plan import Plan
from echo.report.profile import Profile
from echo.report.text import REST, more_memory, render, rows
from echo.report.usage import BLOCKS, DEVICE, GRAPH, PROCESS, STORAGE, UNWRITTEN, Tensor, Usage, layer_by
from tests.report.profiles import MB, made_up
from tests.report.test_usage import STEPS, TENSORS, USAGE

MORE = "10 % more memory (up to 253.0 MB) would buy"
THAN = "than stock's; this one's takes 3.1 % more time"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], ""),
        ([(200, 1.2), (253, 1.01), (254, 0.5)], f"{MORE} a plan of 253.0 MB, whose step takes 1.0 % more time {THAN}"),
        ([(220, 0.9)], f"{MORE} a plan of 220.0 MB, whose step takes 10.0 % less time {THAN}"),
        ([(200, 1.2), (300, 0.9)], f"{MORE} no time"),
        ([(300, 0.9)], f"{MORE} no time"),
    ],
)  # fmt: skip
def test_the_fastest_plan_that_fits(rows: list[tuple[int, float]], expected: str) -> None:
    frontier = tuple({"total": total * MB, "time": time, "overhead": 0.0} for total, time in rows)
    assert more_memory(replace(made_up(10), frontier=frontier)) == expected


def test_other_budgets_stand_next_to_what_they_buy() -> None:
    text = render(made_up(30))
    lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines()]
    assert ["50.0", "50.0", "+20.0 %"] in lines
    assert ["this plan", "230.0", "+3.1 %"] in lines
    assert LEFT_OUT in text


def test_a_row_for_each_thing_and_the_rest_in_percent() -> None:
    profile = made_up(30)
    stock, planned = profile.usages["stock"], profile.usages["echo"]
    grown = stock.total + 10 * MB
    usages = {"stock": replace(stock, measured={PROCESS: grown, STORAGE: 1536 * MB}), "echo": planned}
    assert rows(replace(profile, usages=usages)) == [
        (PROCESS, [f"{grown / MB:,.1f}", "-"]),
        (STORAGE, ["1,536.0", "-"]),
        (REST, [f"10.0 ({100 * 10 * MB / grown:.1f} %)", "-"]),
    ]
    usages["echo"] = replace(planned, measured={PROCESS: 7, DEVICE: planned.total * 2})
    assert rows(replace(profile, usages=usages))[-1][1][1].endswith(" (50.0 %)"), "of the device"


def test_measured_parts_add_up_to_the_growth_of_the_process() -> None:
    profile = made_up(30)
    measured = {PROCESS: 300 * MB, STORAGE: 270 * MB, BLOCKS: 30 * MB, GRAPH: 5 * MB, UNWRITTEN: 15 * MB}
    found = rows(replace(profile, usages={"stock": replace(profile.usages["stock"], measured=measured)}))
    whole, *parts = (float(cells[0].partition(" ")[0]) for _, cells in found)
    assert sum(parts) == whole
    assert dict(found)[UNWRITTEN] == ["-15.0"], "it takes no memory"


def test_profile_without_measurements_has_no_rows() -> None:
    assert rows(made_up(30)) == []
    profile = made_up(30)
    nothing = replace(profile.usages["stock"], measured={STORAGE: MB})
    assert rows(replace(profile, usages={"stock": nothing}))[-1] == (REST, ["-"])


TEXT_MB = 10**6


def _large(usage: Usage) -> Usage:
    tensors = tuple(
        Tensor(each.name, each.op, each.layer, each.kind, each.bytes * TEXT_MB, each.first, each.last)
        for each in usage.tensors
    )
    others = {kind: size * TEXT_MB for kind, size in usage.beside.items()}
    return Usage(usage.planned * TEXT_MB, others, usage.steps, usage.forward_steps, tensors, {PROCESS: 300 * TEXT_MB})


@pytest.fixture
def profile() -> Profile:
    memory = Memory(230 * TEXT_MB, 0, {}, {}, {})
    key = PlanKey("graph", {}, (), "cpu", "executor", {})
    plan = Plan((), memory, memory, None, 1.0, 0.031, 1, "search", "cpu", "hook", key, notes=(Note("a note"),))
    smaller = Usage(170, {}, STEPS, 3, TENSORS[:3])
    return Profile({"stock": _large(USAGE), "echo": _large(smaller)}, plan, "cpu", {})


def test_the_tables(profile: Profile, golden: Callable[[str, str], None]) -> None:
    golden("profile.txt", "\n\n".join([str(profile), render(profile, layer_by("tanh|fc"))]))


def test_many_layers_become_one_row(profile: Profile) -> None:
    tensors = tuple(Tensor(f"x{i}", "op", f"layer{i}", "feature maps", TEXT_MB, 0, 4) for i in range(30))
    text = render(Profile({"stock": Usage(30 * TEXT_MB, {}, STEPS, 3, tensors)}, profile.plan, "cpu", {}))
    assert "18 more" in text
    assert "a note" not in text, "notes are about the plan"
    assert echo.Profile is Profile
