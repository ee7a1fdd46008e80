"""``ECHO_DEBUG=check``: what a stage gives is held against the rules of its type; each broken rule is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Mapping

import pytest

import echo
from benchmarks.models import SMALL
from echo import pipeline
from echo.errors import EchoError, OptionError
from echo.estimators.cost_model import CostModel
from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
from echo.passes.analysis import Candidates
from echo.passes.patterns.apply import Fused
from echo.passes.rewrite import Confirmed, Rewritten
from echo.passes.select import Selection
from echo.plans.plan import Plan
from echo.plans.variables import DEBUG_VARIABLE
from echo.policies.problem import Segments

pytestmark = pytest.mark.usefixtures("cheap_planning")
MODEL = SMALL["lm"]()


def with_node(value: Any, number: int, **changed: Any) -> Any:
    """A graph or a training graph in which one node is another, as a stage may make it that skips all checks."""
    nodes = list(value.nodes)
    nodes[number] = replace(nodes[number], **changed)
    damaged = object.__new__(type(value))
    damaged.__dict__.update({name: getattr(value, name) for name in value.__dataclass_fields__}, nodes=tuple(nodes))
    return damaged


def first_operator(value: Any) -> int:
    return next(number for number, node in enumerate(value.nodes) if node.inputs)


def late(graph: Any) -> Any:
    """An operator that reads a later operator's output."""
    return with_node(graph, first_operator(graph), inputs=(Entry(len(graph.nodes) - 1),))


def uncertain(found: Candidates) -> Candidates:
    """One node both among the candidates and refused."""
    return replace(found, refused={**found.refused, next(iter(found.light)): "no"})


DAMAGES: Mapping[str, tuple[type, Callable[[Any], Any], str]] = {
    "a fused graph out of order":
        (Fused, lambda found: replace(found, graph=late(found.graph)), "expected one before"),
    "a fused graph with another argument":
        (Fused, lambda found: replace(found, graph=with_node(found.graph, found.graph.arg_nodes[0], name="other")),
         "expected the variables"),
    "a training graph out of order":
        (TrainingGraph, late, "before it"),
    "a gradient of a node that is not there":
        (
            TrainingGraph,
            lambda found: with_node(found, first_operator(found), original=10**6),
            "an operator of the user's",
        ),
    "a candidate that is refused, too":
        (Candidates, uncertain, "one verdict"),
    "an operator without a verdict":
        (Candidates, lambda found: replace(found, light={}), "a verdict on each"),
    "a candidate of another node":
        (Candidates, lambda found: replace(found, light=dict.fromkeys(found.light, (Entry(0),))), "outputs of node"),
    "a node in two segments":
        (Segments, lambda found: Segments((*found.segments, found.segments[0])), "in one segment"),
    "seconds of too few nodes":
        (CostModel, lambda found: replace(found, seconds=found.seconds[1:]), "expected seconds of"),
    "seconds below zero":
        (CostModel, lambda found: replace(found, seconds=(-1.0, *found.seconds[1:])), "seconds of node 0, got -1.0"),
    "a map recomputed that may not be":
        (Selection, lambda found: replace(found, recompute=found.recompute | {Entry(0)}), "among the candidates"),
    "a node that is recomputed no times":
        (Selection, lambda found: replace(found, runs=dict.fromkeys(found.runs, 0)), "once or more"),
    "another operator":
        (Rewritten, lambda found: replace(found, graph=with_node(found.graph, first_operator(found.graph), op="x")),
         "as the user made it"),
    "more memory":
        (Confirmed, lambda found: replace(found, planned_bytes=1 << 50), "no more than the"),
    "two decisions on one map":
        (Plan, lambda plan: replace(plan, decisions=(*plan.decisions, plan.decisions[0])), "one decision on each"),
    "a plan that changes nothing and does":
        (Plan, lambda plan: replace(plan, applied="none"), "nothing recomputed"),
}  # fmt: skip


def damaged(kind: type, damage: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """Has the stage that gives this kind of value damage it; the name of that stage."""
    stage = next(stage for stage in (*pipeline.BASES, *pipeline.PIPELINE) if stage.gives is kind)
    full = type(stage).run

    def broken(own: Any, *values: Any) -> Any:
        return damage(full(own, *values))

    monkeypatch.setattr(type(stage), "run", broken)
    return stage.name


@pytest.mark.parametrize("name", DAMAGES)
def test_a_broken_rule_names_the_stage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, damage, text = DAMAGES[name]
    stage = damaged(kind, damage, monkeypatch)
    fuse = kind is Fused
    with pytest.raises(EchoError, match=text) as caught:
        echo.plan(MODEL.symbol, max_overhead=None, fuse=fuse, strict=True, **MODEL.shapes)
    assert caught.value.stages[-1] == stage


def test_values_are_checked_only_where_the_user_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, damage, _ = DAMAGES["two decisions on one map"]
    damaged(kind, damage, monkeypatch)
    monkeypatch.delenv(DEBUG_VARIABLE)
    assert echo.plan(MODEL.symbol, max_overhead=None, fuse=False, **MODEL.shapes).recomputed


def test_a_value_of_the_variable_that_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG_VARIABLE, "maybe")
    with pytest.raises(OptionError, match=r"^ECHO_DEBUG: expected dump=FOLDER, check, .*, got 'maybe'"):
        echo.plan(MODEL.symbol, max_overhead=None, fuse=False, **MODEL.shapes)


def test_a_stage_that_breaks_a_rule_costs_its_plan_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, damage, _ = DAMAGES["a fused graph out of order"]
    damaged(kind, damage, monkeypatch)
    plan = echo.plan(MODEL.symbol, max_overhead=None, **MODEL.shapes)
    assert not plan.fused
    assert plan.recomputed
    assert "(in the stage fuse)" in plan.failed[0].text
