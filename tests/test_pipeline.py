"""The tables of the pipeline: each stage has what it needs, and planning goes through all of them."""

from __future__ import annotations

from typing import Any

import pytest

import echo
from echo import pipeline
from echo.passes import choose
from echo.passes.patterns.apply import Fused
from echo.passes.request import Request
from echo.planning.planner import Planner
from echo.plans.plan import Plan
from echo.runtime import bind_plan
from tests.runtime.test_fallbacks import SHAPES, model


def test_each_stage_needs_what_was_given_before() -> None:
    known: set[type] = {Request}
    for stage in pipeline.PIPELINE:
        assert set(stage.needs) <= known, stage.name
        assert stage.gives not in known, stage.name
        known.add(stage.gives)
    assert Plan in known
    assert {stage.gives for stage in pipeline.BASES} == {Fused}
    assert all(set(stage.needs) <= {Request, Fused} for stage in pipeline.REFINEMENTS)


def test_planning_goes_through_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[choose.Stages] = []
    full = choose.plan

    def plan(request: Request, given: choose.Stages) -> Any:
        stages.append(given)
        return full(request, given)

    monkeypatch.setattr(choose, "plan", plan)
    monkeypatch.setattr("echo.planning.plan_cache.load", lambda *_: None)
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    echo.plan(model(), **SHAPES)
    assert stages == [(pipeline.BASES, pipeline.PIPELINE, pipeline.REFINEMENTS)]
