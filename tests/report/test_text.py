"""Profiles as text, held against a committed one."""

from __future__ import annotations

from typing import Callable

import pytest

import echo
from echo.plans.decisions import Memory, Note
from echo.plans.key import PlanKey
from echo.plans.plan import Plan
from echo.report.profile import Profile
from echo.report.text import render
from echo.report.usage import Tensor, Usage, layer_by
from tests.report.test_usage import STEPS, TENSORS, USAGE

MB = 10**6


def _large(usage: Usage) -> Usage:
    tensors = tuple(
        Tensor(each.name, each.op, each.layer, each.kind, each.bytes * MB, each.first, each.last)
        for each in usage.tensors
    )
    beside = {kind: size * MB for kind, size in usage.beside.items()}
    return Usage(usage.planned * MB, beside, usage.steps, usage.forward_steps, tensors, {"process": 300 * MB})


@pytest.fixture
def profile() -> Profile:
    memory = Memory(230 * MB, 0, {}, {}, {})
    key = PlanKey("graph", {}, (), "cpu", "executor", {})
    plan = Plan((), memory, memory, None, 1.0, 0.031, 1, "search", "cpu", "hook", key, notes=(Note("a note"),))
    smaller = Usage(170, {}, STEPS, 3, TENSORS[:3])
    return Profile({"stock": _large(USAGE), "echo": _large(smaller)}, plan, "cpu", {})


def test_the_tables(profile: Profile, golden: Callable[[str, str], None]) -> None:
    golden("profile.txt", "\n\n".join([str(profile), render(profile, layer_by("tanh|fc"))]))


def test_many_layers_become_one_row(profile: Profile) -> None:
    tensors = tuple(Tensor(f"x{i}", "op", f"layer{i}", "feature maps", MB, 0, 4) for i in range(30))
    text = render(Profile({"stock": Usage(30 * MB, {}, STEPS, 3, tensors)}, profile.plan, "cpu", {}))
    assert "18 more" in text
    assert "a note" not in text, "notes are about the plan"
    assert echo.Profile is Profile
