"""Inputs that are read for their shape alone: no plan lets oneDNN's arrays of other shapes take their memory early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mxnet as mx
import pytest

import echo
from echo.estimators.layouts import shape_only_hazard
from echo.frontend.capture import training_graph
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, infer_binding
from echo.ir.graph import Graph
from echo.ir.op_spec import RANGE_ATTRIBUTE
from echo.ir.training_graph import Runner, StorageStrategy, TrainingGraph
from tests.support.training import assert_same, bind, random_arrays, train

pytestmark = pytest.mark.usefixtures("cheap_planning")
SHAPE = (2, 8, 4, 4)
AROUND = (0, 0, 0, 0, 1, 1, 1, 1)


def network() -> Any:
    """Found by the fuzzer (symbols 147574505): the gradient of ``2 * pad0`` is ``zeros_like(pad0)``."""
    data = mx.sym.var("data", shape=SHAPE, dtype="float32")
    padded = mx.sym.Pad(data, mode="edge", pad_width=AROUND)
    ones = mx.sym.mean(mx.sym.square(mx.sym.ones_like(padded * 2, name="ones")))
    layer = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=8, num_group=8)
    slope = mx.sym.LeakyReLU(mx.sym.Pad(layer, mode="edge", pad_width=AROUND), act_type="prelu")
    half = mx.sym.Cast(mx.sym.Cast(mx.sym.var("half", shape=SHAPE, dtype="float32"), dtype="float16"), dtype="float32")
    return mx.sym.Group([mx.sym.Concat(mx.sym.var("other", shape=SHAPE, dtype="float32"), half, dim=1), ones, slope])


def graphs(symbol: Any) -> tuple[Graph, TrainingGraph]:
    assert install_hook() == ""
    graph = graph_of(symbol)
    return graph, training_graph(graph, infer_binding(symbol, {}), mx.cpu())


def deeper() -> Any:
    """With maps that are worth recomputing."""
    top = mx.sym.var("top", shape=SHAPE, dtype="float32")
    for _ in range(6):
        top = mx.sym.Convolution(top, kernel=(3, 3), pad=(1, 1), num_filter=8)
        top = mx.sym.Activation(mx.sym.BatchNorm(top), act_type="tanh")
    return mx.sym.Group([*network(), top])


@pytest.mark.parametrize("made", [network, deeper])
def test_a_plan_shares_memory_by_assignment_alone(made: Any) -> None:
    """Under MXNet's planner, a Concat whose gradient reads less ended in an error of oneDNN's."""
    symbol = made()
    inputs = dict.fromkeys(set(symbol.list_arguments()) & {"data", "half", "other", "top"}, SHAPE)
    values = random_arrays(symbol, inputs)
    expected = train(bind(symbol, values))
    plan = echo.plan(symbol, fuse=False, max_overhead=None)
    if made is deeper:
        assert plan.after.planned < plan.before.planned
        assert plan.match_range == StorageStrategy.ASSIGNED
    else:
        assert plan.reason == "nothing to gain"
    for _ in range(3):
        assert_same(train(bind(echo.optimize(symbol, fuse=False, max_overhead=None), values)), expected)


def test_a_plan_for_mxnets_planner_is_refused() -> None:
    """Of whoever made it: an earlier version, or the user."""
    symbol = deeper()
    plan = echo.plan(symbol, fuse=False, max_overhead=None)
    marks = [(mark, {k: v for k, v in mark.attrs.items() if k != RANGE_ATTRIBUTE}) for mark in plan.marks]
    edited = replace(plan, match_range=None, marks=tuple(replace(m, attrs=attrs) for m, attrs in marks if attrs))
    assert echo.optimize(symbol, plan=plan).simple_bind(mx.cpu())
    with pytest.raises(echo.PlanError, match="may find another array in the memory of an input"):
        echo.optimize(symbol, plan=edited).simple_bind(mx.cpu())


def test_map_that_may_be_overwritten_is_found() -> None:
    graph, training = graphs(network())
    assert shape_only_hazard(graph, training, "cpu") == "ones"
    assert not shape_only_hazard(graph, training, "gpu"), "there are no layouts of oneDNN's"
    assert not shape_only_hazard(graph, replace(training, runner=Runner.STATIC), "cpu"), "a CachedOp's planner waits"


@pytest.mark.parametrize("case", ["no convolution", "a variable", "an output"])
def test_map_that_keeps_its_memory_is_not_found(case: str) -> None:
    data = mx.sym.var("data", shape=SHAPE, dtype="float32")
    layer = mx.sym.Convolution(data, kernel=(3, 3), num_filter=8, name="layer")
    root = mx.sym.sqrt(layer, name="root")
    symbol = {
        "no convolution": mx.sym.broadcast_mul(mx.sym.ones_like(mx.sym.sqrt(data)), data),
        "a variable": mx.sym.Group([mx.sym.ones_like(data), root]),
        "an output": mx.sym.Group([mx.sym.ones_like(root), root]),
    }[case]
    graph, training = graphs(symbol)
    assert not shape_only_hazard(graph, training, "cpu")
