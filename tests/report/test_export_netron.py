"""A symbol with a plan written on its nodes: every decision is found there, and nothing else changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import mxnet as mx
import pytest

import echo
from echo.errors import GraphError
from echo.plans.decisions import MissedFusion
from echo.report import export

pytestmark = pytest.mark.usefixtures("cheap_planning")


def lstm() -> tuple[mx.sym.Symbol, dict[str, tuple[int, ...]]]:
    with mx.name.NameManager():
        words = mx.sym.Embedding(mx.sym.var("data"), input_dim=50, output_dim=16, name="embed")
        outputs, _ = mx.rnn.LSTMCell(num_hidden=16, prefix="lstm_").unroll(4, inputs=words, merge_outputs=True)
        hidden = mx.sym.Activation(mx.sym.Reshape(outputs, shape=(-1, 16)), act_type="tanh", name="hidden")
        scores = mx.sym.FullyConnected(hidden, num_hidden=50, name="scores")
        label = mx.sym.Reshape(mx.sym.var("softmax_label"), shape=(-1,), name="labels")
        return mx.sym.SoftmaxOutput(scores, label, name="softmax"), {"data": (8, 4), "softmax_label": (8, 4)}


@pytest.mark.parametrize("fuse", [True, False])
def test_every_decision_stands_at_a_node(fuse: bool) -> None:
    symbol, shapes = lstm()
    value = json.loads(symbol.tojson())
    plan = echo.plan(symbol, fuse=fuse, **shapes)
    made = export.annotated(value, plan)
    attributes = {node["name"]: node.get("attrs", {}) for node in made["nodes"]}
    names = {node["name"] for node in value["nodes"]}
    shown = [decision for decision in plan.decisions if decision.name in names]
    assert shown
    for decision in shown:
        assert decision.action in attributes[decision.name][export.DECISION]
        assert decision.reason in attributes[decision.name][export.REASON]
    operators = [node["name"] for node in value["nodes"] if node["op"] != "null"]
    assert all({export.DECISION, export.REASON} <= set(attributes[name]) for name in operators)
    undecided = [name for name in operators if attributes[name][export.DECISION] == export.NOTHING]
    assert undecided
    assert not {decision.name for decision in plan.decisions} & set(undecided)
    assert all(("fused operator" in attributes[name][export.REASON]) == fuse for name in undecided)
    patterns = {attrs[export.FUSED] for attrs in attributes.values() if export.FUSED in attrs}
    assert ("lstm_layer" in patterns) == fuse


def test_annotation_changes_nothing_else() -> None:
    symbol, shapes = lstm()
    value = json.loads(symbol.tojson())
    before = json.dumps(value)
    made = export.annotated(value, echo.plan(symbol, **shapes))
    assert json.dumps(value) == before
    for node in made["nodes"]:
        node["attrs"] = {key: text for key, text in node.get("attrs", {}).items() if not key.startswith("echo")}
    for node in value["nodes"]:
        node.setdefault("attrs", {})
    assert made == value


def test_near_misses_say_why() -> None:
    symbol, shapes = lstm()
    value = json.loads(symbol.tojson())
    place = next(number for number, node in enumerate(value["nodes"]) if node["name"] == "softmax")
    plan = replace(echo.plan(symbol, **shapes), missed=(MissedFusion(place, "softmax", "softmax_output", "too small"),))
    assert export.annotated(value, plan)["nodes"][place]["attrs"][export.MISSED] == "softmax_output: too small"


@pytest.mark.parametrize("value", [{}, {"nodes": 3}, {"nodes": [{}]}, {"nodes": [{"op": "tanh", "name": []}]}])
def test_json_without_symbol_raises_graph_error(value: Any) -> None:
    symbol, shapes = lstm()
    with pytest.raises(GraphError, match="expected the JSON of a symbol"):
        export.annotated(value, echo.plan(symbol, **shapes))
