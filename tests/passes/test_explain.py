"""Every feature map has a decision with its bytes and a reason, and the totals are those of the planners."""

from __future__ import annotations

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo.frontend.capture import training_graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE
from echo.plans.decisions import RECOMPUTE, STASH
from echo.plans.plan import Plan
from tests.conftest import model_case


def plan_of(name: str, **options: object) -> Plan:
    model = SMALL[name]()
    return echo.plan(model.symbol, fuse=False, **options, **model.shapes)


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("name", ["nmt", "resnet50_v1"])
def test_every_map_that_a_gradient_reads_has_a_decision(name: str) -> None:
    case, plan = model_case(name), plan_of(name, max_overhead=None)
    marks = {mark.node: {GRADIENT_ATTRIBUTE: mark.attrs[GRADIENT_ATTRIBUTE]} for mark in plan.marks
             if GRADIENT_ATTRIBUTE in mark.attrs}  # fmt: skip
    training = training_graph(case.graph, case.binding, mx.cpu(), marks)
    decided = {(decision.node, decision.output): decision for decision in plan.decisions}
    for entry in training.backward_readers:
        node = training.nodes[entry.node]
        if node.is_variable:
            continue
        decision = decided[(-1 if node.user is None else node.user, entry.index)]
        assert decision.bytes == node.outputs[entry.index].bytes
        assert decision.reason
    assert {decision.action for decision in plan.decisions} == {STASH, RECOMPUTE}
    assert plan.recomputed_nodes >= len({decision.node for decision in plan.recomputed}), "some run more than once"


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("name", ["nmt", "lm", "resnet50_v2"])
def test_totals_are_consistent(name: str) -> None:
    plan = plan_of(name, max_overhead=None)
    for memory in (plan.before, plan.after):
        assert 0 < memory.live_peak <= memory.planned
        assert sum(memory.at_peak.values()) == memory.live_peak
        assert memory.total == memory.planned + sum(memory.static.values())
    assert plan.after.planned < plan.before.planned == model_case(name).training.planned_bytes
    assert plan.after.static == plan.before.static


@pytest.mark.usefixtures("cheap_planning")
def test_reasons_name_what_they_are_about() -> None:
    plan = plan_of("nmt", keep="Activation", max_overhead=None)
    reasons = {decision.op: decision.reason for decision in plan.decisions if decision.action == STASH}
    assert reasons["Activation"] == "kept: matches 'Activation'"
    assert reasons["FullyConnected"].startswith("FullyConnected is compute-heavy")
    assert reasons["SoftmaxOutput"] == "an output of the symbol lives to the end anyway"
    assert all("computed again from" in decision.reason for decision in plan.recomputed)
