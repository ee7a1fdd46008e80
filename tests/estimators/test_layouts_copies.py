"""Plain copies of blocked maps, which operators that are not oneDNN's keep: no plan makes storage grow by them."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import echo
from echo.estimators.layouts import copied, with_layout_copies
from echo.estimators.scheduler import CHUNKS, LIVE, Scheduler
from echo.estimators.storage_planner import ReferencePlanner, StoragePlanner
from echo.frontend.capture import training_graph
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, infer_binding
from echo.ir.graph import Entry
from echo.ir.schedule import with_clones
from echo.ir.training_graph import Runner, TrainingGraph
from echo.system.terminal import size_text
from echo.verify.storage import peak_storage

pytestmark = pytest.mark.usefixtures("cheap_planning")
S = mx.sym
SHAPE = (4, 16, 32, 32)
MAP = int(np.prod(SHAPE)) * 4
MB = 2**20
STATIC_SHAPE = {"static_alloc": True, "static_shape": True}
# The operators after each BatchNorm: some that are not oneDNN's, and gradients that others could compute.
ENDS: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda F, x: F.relu(x),
    "relu of a sum": lambda F, x: F.relu(x + F.Activation(x, act_type="tanh")),
    "swish": lambda F, x: x * F.sigmoid(x),
    "hard swish": lambda F, x: x * F.clip(x + 3, 0, 6) / 6,
    "sigmoid": lambda F, x: F.Activation(x, act_type="sigmoid"),
    "gate": lambda F, x: x * F.Activation(x, act_type="sigmoid"),
}


def network(end: Callable[[Any, Any], Any], layers: int = 5) -> Any:
    """Convolutions of 16 channels, which oneDNN computes in a blocked layout, with BatchNorm and an end each."""
    x = S.Convolution(S.var("data", dtype="float32"), kernel=(3, 3), pad=(1, 1), num_filter=16)
    for _ in range(layers):
        x = S.BatchNorm(S.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=16, no_bias=True), fix_gamma=False)
        x = end(S, x)
    return S.MakeLoss(S.mean(x))


def captured(symbol: Any) -> TrainingGraph:
    assert not install_hook()
    return training_graph(graph_of(symbol), infer_binding(symbol, {"data": SHAPE}), mx.cpu())


def held_by_executor(symbol: Any) -> int:
    def run() -> None:
        executor = symbol.simple_bind(mx.cpu(), data=SHAPE)
        for _ in range(2):
            executor.forward(is_train=True)
            executor.backward()
        mx.nd.waitall()

    return peak_storage(run, mx.cpu())[0]


def held_by_block(symbol: Any, flags: dict[str, bool], options: dict[str, Any] | None) -> int:
    def run() -> None:
        net = gluon.SymbolBlock(symbol, [S.var("data", dtype="float32")])
        net.initialize()
        net.hybridize(**flags)
        if options is not None:
            net = echo.optimize(net, **options)
        data = mx.nd.ones(SHAPE)
        for _ in range(2):
            with autograd.record():
                loss = net(data)
            loss.backward()
        mx.nd.waitall()
        del net, loss
        gc.collect()

    return peak_storage(run, mx.cpu())[0]


OPTIONS: dict[str, Any] = {"fuse": False, "max_overhead": None}


@pytest.mark.parametrize("end", ENDS)
def test_an_executor_holds_no_more(end: str) -> None:
    symbol = network(ENDS[end])
    own, echos = held_by_executor(symbol), held_by_executor(echo.optimize(symbol, **OPTIONS))
    assert echos <= 1.01 * own, f"{own / MB:.1f} MB became {echos / MB:.1f} MB"


@pytest.mark.every(5)
@pytest.mark.parametrize("end", ENDS)
def test_a_static_block_holds_no_more(end: str) -> None:
    symbol = network(ENDS[end])
    own = held_by_block(symbol, STATIC_SHAPE, None)
    echos = held_by_block(symbol, STATIC_SHAPE, {**OPTIONS, "strict": True})
    assert echos <= 1.01 * own, f"{own / MB:.1f} MB became {echos / MB:.1f} MB"


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}], ids=["dynamic", "static"])
def test_a_block_of_changing_shapes_keeps_no_copies_and_still_saves(flags: dict[str, bool]) -> None:
    symbol = network(ENDS["relu"])
    own, echos = held_by_block(symbol, flags, None), held_by_block(symbol, flags, OPTIONS)
    assert echos < 0.9 * own, f"{own / MB:.1f} MB became {echos / MB:.1f} MB"


def test_a_plan_says_what_is_kept_and_counts_it() -> None:
    symbol = network(ENDS["swish"])
    plan = echo.plan(symbol, data=SHAPE, recompute=["sigmoid"], **OPTIONS)
    again = [decision for decision in plan.recomputed if decision.op == "sigmoid"]
    assert plan.after.layout_copies == MAP * len(again) > 0  # of each, its input
    assert plan.after.total == plan.after.planned + sum(plan.after.static.values())
    assert f"MB planned and {size_text(plan.after.layout_copies)} plain copies of maps" in plan.summary()
    assert echo.Plan.from_json(plan.to_json()) == plan
    grown = held_by_executor(echo.optimize(symbol, recompute=["sigmoid"], **OPTIONS)) - held_by_executor(symbol)
    expected = plan.after.chosen - plan.before.planned
    assert abs(grown - expected) <= 2 * MAP


def test_only_what_is_not_onednns_keeps_copies() -> None:
    training = with_layout_copies(captured(network(ENDS["relu"])), "cpu")
    kept = {node.op: node.layout_copy_bytes for _, node in training.operators() if node.layout_copy_bytes}
    assert kept == {"relu": 2 * MAP, "mean": MAP}  # in place over the output of BatchNorm, whose layout stays
    ops = {training.nodes[entry.node].op for entry in copied(training, "cpu")}
    assert ops == {"Convolution", "BatchNorm", "relu"}


@pytest.mark.parametrize(("act_type", "kept"), [("softsign", True), ("relu", False), ("tanh", False)])
def test_an_activation_keeps_copies_where_it_is_not_onednns(act_type: str, kept: bool) -> None:
    training = with_layout_copies(captured(network(lambda F, x: F.Activation(x, act_type=act_type))), "cpu")
    found = [node.layout_copy_bytes for _, node in training.operators() if node.op == "Activation"]
    assert all((size > 0) == kept for size in found)


def test_no_copies_are_kept_elsewhere() -> None:
    training = captured(network(ENDS["relu"]))
    assert with_layout_copies(training, "gpu") is training
    assert not copied(training, "gpu")
    for runner in (Runner.DYNAMIC, Runner.STATIC):
        other = replace(training, runner=runner)
        assert with_layout_copies(other, "cpu") is other
        assert not copied(other, "cpu")
    assert copied(replace(training, runner=Runner.SHAPED), "cpu")
    dense = S.MakeLoss(S.mean(S.relu(S.FullyConnected(S.var("data"), num_hidden=4))))
    assert not any(node.layout_copy_bytes for _, node in with_layout_copies(captured(dense), "cpu").operators())


def test_all_planners_count_what_copies_keep() -> None:
    training = with_layout_copies(captured(network(ENDS["hard swish"])), "cpu")
    without = replace(training, nodes=tuple(node.having(layout_copy_bytes=0) for node in training.nodes))
    clip = [number for number, node in training.operators() if node.op == "_plus_scalar"]
    choice = np.zeros(training.first_entry[-1], np.uint8)
    choice[[training.entry_id(Entry(number)) for number in clip]] = 1
    clones = with_clones(training, [Entry(number) for number in clip])
    kept = sum(node.layout_copy_bytes for node in clones.nodes if not node.forward and node.original is not None)
    assert kept == MAP * len(clip)
    seconds, ranges = [0.0] * len(training.nodes), (16, 1, -1)
    for planner in (StoragePlanner, ReferencePlanner):
        more, less = (planner(graph, seconds).evaluate(choice, ranges).totals for graph in (training, without))
        assert [a - b for a, b in zip(more, less)] == [kept] * 3
    shaped = replace(training, runner=Runner.SHAPED)
    fast, slow = (planner(shaped, seconds) for planner in (StoragePlanner, ReferencePlanner))
    assert fast.evaluate(choice, ranges).totals == slow.evaluate(choice, ranges).totals
    schedule = {number: (len(training.nodes) // 2,) for number in clip}
    for measure in (LIVE, CHUNKS):
        own, less = (Scheduler(graph, seconds, measure) for graph in (training, without))
        steps = own.steps(schedule)
        again = sum(training.nodes[step.node].layout_copy_bytes for step in steps if step.node != step.position)
        assert own.simulate(schedule).bytes - less.simulate(schedule).bytes == again > 0
