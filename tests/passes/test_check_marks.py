"""Every mark that a file can hold, at every operator: refused, or the same bits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from echo.ir.gradient_rules import EXCHANGES, known
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, MIRROR_ATTRIBUTE, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from fuzz import files
from fuzz.file_models import MODELS, RUNNERS, graph

pytestmark = pytest.mark.usefixtures("cheap_planning")
OUTPUTS = ["0", "1", "2", "0,1", "0,1,2", "1,0", "0,0", "1@0", "0@0", "0@1", "0@5,2", "0@1,9", "0@999999", "0,1@3"]
MALFORMED = ["00", "0@", "@1", "", "-1", "+0", " 0", "0,", "\u0660", "99999999999999999999"]
RANGES = ["-1", "-1s", "-2", "0", "1", "7", "16", "99999999999", "x", ""]
SETUPS = [files.Setup(model, runner, tuple(files._OPTIONS[0].items())) for model in MODELS for runner in RUNNERS]


def tried(setup: files.Setup, number: int, attrs: dict[str, str], **more: Any) -> str | None:
    """What is wrong after one node of a plan was given these attributes."""
    value = {**json.loads(files.whole(setup)), **more}
    marks = {mark[0]: mark for mark in value["marks"]}
    ranges = {text for mark in marks.values() for name, text in mark[2].items() if name == RANGE_ATTRIBUTE}
    own = marks.setdefault(number, [number, graph(setup.model).nodes[number].op, {}])
    own[2].update(attrs)
    if PLAN_ATTRIBUTE in attrs and ranges:
        own[2].setdefault(RANGE_ATTRIBUTE, min(ranges))
    value["applied"] = "hook"
    value["marks"] = [marks[key] for key in sorted(marks)]
    return files.outcome(setup, value, f"{attrs} at {own[1]}, node {number}")


def operators(setup: files.Setup) -> list[int]:
    return [number for number, node in enumerate(graph(setup.model).nodes) if not node.is_variable]


def check(found: list[str | None]) -> None:
    wrong = [each for each in found if each]
    assert found
    assert not wrong, f"{len(wrong)} of {len(found)}: {wrong[:3]}"


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS)
def test_every_mark_at_every_operator(setup: files.Setup) -> None:
    nodes = graph(setup.model).nodes
    check([tried(setup, number, {PLAN_ATTRIBUTE: text}) for number in operators(setup) for text in OUTPUTS])
    check([tried(setup, number, {PLAN_ATTRIBUTE: text}) for number in operators(setup)[::5] for text in MALFORMED])
    texts = sorted({rule.text for number in operators(setup) for rule in known(nodes[number].op, nodes[number].attrs)})
    texts += [f"{exchange}:0" for exchange in sorted(EXCHANGES)[:4]] + ["", "a>b:0", "_backward_Activation"]
    check([tried(setup, number, {GRADIENT_ATTRIBUTE: text}) for number in operators(setup) for text in texts])
    check([tried(setup, number, {RANGE_ATTRIBUTE: text}) for number in operators(setup)[::5] for text in RANGES])
    check([tried(setup, number, {MIRROR_ATTRIBUTE: "True"}) for number in operators(setup)])


@pytest.mark.parametrize("value", [None, -3, -2, -1, 0, 1, 7, 16, 2**31, 2**63])
def test_match_ranges_of_the_plan(value: int | None) -> None:
    for setup in SETUPS[:3]:
        plan = json.loads(files.whole(setup))
        plan["match_range"] = value
        for mark in plan["marks"]:
            if RANGE_ATTRIBUTE in mark[2] and value is not None:
                mark[2][RANGE_ATTRIBUTE] = str(value)
        check([files.outcome(setup, plan, f"match range {value}")])


@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_cases(first: int) -> None:
    check([files.run(seed) for seed in range(first, first + (300 if first else 40))])
