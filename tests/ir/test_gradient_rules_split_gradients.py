"""Gradients of convolutions in two nodes: which, in which order, to the same bits, in less memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import mxnet as mx
import pytest

import echo
import echo.ir.gradient_rules
from benchmarks.models import SMALL
from echo.estimators.cost_model import UnmeasurableError, estimate
from echo.estimators.cost_table import CostTable
from echo.frontend.capture import training_graph
from echo.frontend.derived_graphs import apply_gradient_rules
from echo.frontend.framework import MxnetFramework
from echo.frontend.symbols import symbol_of
from echo.ir.gradient_rules import gradient_rules, known, split_gradients, split_rule
from echo.ir.graph import Entry
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, GradientRule
from echo.ir.training_graph import TrainingGraph
from echo.planning.planner import Planner
from echo.plans.plan import Plan
from echo.runtime import bind_plan
from tests.ir.test_ops_cached import DYNAMIC, STATIC
from tests.ir.test_ops_cached import run as run_cached
from tests.support.cases import Case, case_of
from tests.support.training import Record, assert_alive, assert_same, bind, random_arrays, recomputing, train

Symbol = mx.sym.Symbol
SHAPES = {"data": (8, 72)}


def conv(x: Symbol, filters: int, name: str, **attrs: Any) -> Symbol:
    attrs = {"kernel": (1, 1), "no_bias": True, **attrs}
    return mx.sym.Convolution(x, num_filter=filters, name=name, **attrs)


def pooled(x: Symbol) -> Symbol:
    return mx.sym.Pooling(x, kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type="avg", name="pool")


def network(*branches: Callable[[Symbol], Symbol], shape: tuple[int, ...] = (2, 8, 6, 6)) -> Symbol:
    """Several operators read one map of 16 channels, which other operators of the same kind come to and go from."""
    kernel = (1,) * (len(shape) - 2)
    x = conv(mx.sym.reshape(mx.sym.var("data"), shape=shape), 16, "before", kernel=kernel)
    x = mx.sym.tanh(x, name="norm") if len(shape) != 4 else mx.sym.BatchNorm(x, fix_gamma=False, name="norm")
    x = mx.sym.Activation(x, act_type="relu", name="map")
    ends = [conv(branch(x), 4, f"end{number}", kernel=kernel) for number, branch in enumerate(branches)]
    return mx.sym.Group([mx.sym.sin(end) for end in ends])


def one(filters: int, name: str, **attrs: Any) -> Callable[[Symbol], Symbol]:
    return lambda x: conv(x, filters, name, **attrs)


NETWORKS: dict[str, Symbol] = {
    "two": network(one(8, "a"), one(4, "b")),
    "biases": network(one(8, "a", no_bias=False), one(4, "b", no_bias=False)),
    "one bias": network(one(4, "a", no_bias=False), one(8, "b")),
    "three and a pool": network(one(8, "a"), one(4, "b", kernel=(3, 3), pad=(1, 1)), one(6, "c"), pooled),
    "pool first": network(pooled, one(8, "a"), one(4, "b")),
    "groups": network(one(4, "a", num_group=2), one(8, "b", num_group=4)),
    "strides": network(one(16, "a", stride=(2, 2)), one(16, "b", kernel=(3, 3), stride=(2, 2), pad=(1, 1))),
    "and the map": network(one(8, "a"), one(4, "b"), lambda x: x * 2),
    "lines": network(one(8, "a", kernel=(1,)), one(4, "b", kernel=(3,), pad=(1,)), shape=(2, 8, 36)),
    "volumes": network(one(8, "a", kernel=(1, 1, 1)), one(4, "b", kernel=(1, 1, 1)), shape=(2, 8, 2, 3, 6)),
}


def case(symbol: Symbol, dtype: str = "float32") -> Case:
    return case_of(symbol, SHAPES, "write", {"data": dtype})


def split(found: Case) -> dict[int, GradientRule]:
    """By number of the user's node."""
    training = found.training
    users = {training.nodes[number].original: rule for number, rule in split_gradients(training).items()}
    return {original: rule for original, rule in users.items() if original is not None}


def names(found: Case) -> list[str]:
    return [found.graph.nodes[original].name for original in split(found)]


def marked(found: Case, wanted: dict[int, GradientRule]) -> Symbol:
    return symbol_of(
        found.graph.with_attrs({original: {GRADIENT_ATTRIBUTE: rule.text} for original, rule in wanted.items()})
    )


def run(symbol: Symbol, grad_req: str = "write") -> Record:
    return train(bind(symbol, random_arrays(symbol, SHAPES), grad_req))


# The same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_bits(name: str) -> None:
    found = case(NETWORKS[name])
    symbol = marked(found, split(found))
    expected = run(found.symbol)
    assert_alive(expected)
    assert_same(run(symbol), expected)
    assert_same(run(symbol, "add"), run(found.symbol, "add"))
    assert_same(run(recomputing(symbol, {"norm": [0], "map": [0]})), expected)


@pytest.mark.every(3)
@pytest.mark.parametrize("flags", [DYNAMIC, STATIC], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_bits_in_a_cached_op(name: str, flags: dict[str, Any]) -> None:
    found = case(NETWORKS[name])
    symbol = marked(found, split(found))
    expected, _ = run_cached(found.symbol, flags)
    assert_same(run_cached(symbol, flags)[0], expected)
    assert_same(run_cached(recomputing(symbol, {"norm": [0], "map": [0]}), flags)[0], expected)


# Which, and in which order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_is_what_mxnet_binds(name: str) -> None:
    found = case(NETWORKS[name])
    wanted = split(found)
    marks = {original: {GRADIENT_ATTRIBUTE: rule.text} for original, rule in wanted.items()}
    bound = training_graph(found.graph, found.binding, mx.cpu(), marks)
    made = apply_gradient_rules(found.training, wanted)
    assert made.outputs == bound.outputs
    plain = [replace(node, attrs={}) for node in bound.nodes]
    assert [replace(node, attrs={}) for node in made.nodes] == plain
    assert len(made.nodes) == len(found.training.nodes) + len(wanted)


def gradients(training: TrainingGraph, name: str) -> list[int]:
    (forward,) = (number for number, node in training.operators() if node.forward and node.name == name)
    return [number for number, node in training.operators() if not node.forward and node.control_deps[:1] == (forward,)]


def test_the_order() -> None:
    """The weights' gradient just before the other convolution's, the data's after it: only the first needs the map."""
    found = case(NETWORKS["two"])
    assert names(found) == ["b"]
    training = apply_gradient_rules(found.training, split(found))
    weights, data = gradients(training, "b")
    (other,) = gradients(training, "a")
    assert weights + 1 == other < data
    (activation,) = (Entry(number) for number, node in training.operators() if node.name == "map" and node.forward)
    assert activation[:2] in {entry[:2] for entry in training.nodes[weights].inputs}
    assert activation[:2] not in {entry[:2] for entry in training.nodes[data].inputs}
    read = {entry[:2] for node in training.nodes for entry in node.inputs} | {entry[:2] for entry in training.outputs}
    assert {(weights, 0), (data, 1)}.isdisjoint(read)
    assert {(weights, 1), (data, 0)} <= read  # each is computed once


def test_split_gradient_waits_only_if_smaller_than_what_it_frees() -> None:
    assert names(case(network(one(8, "a"), one(2, "b"), one(4, "c")))) == ["b"]
    assert names(case(network(one(16, "a"), one(16, "b")))) == []
    assert names(case(network(one(15, "a"), one(15, "b")))) in (["a"], ["b"])
    assert names(case(network(one(8, "a")))) == []
    assert names(case(network(one(8, "a"), pooled))) == []


def test_only_where_onednn_computes_them() -> None:
    found = case(NETWORKS["two"])
    assert split(found).items() <= gradient_rules(found.training, onednn=True).items()
    assert not split(found).keys() & gradient_rules(found.training, onednn=False).keys()
    assert split(case(NETWORKS["two"], "float64")) == {}
    for rule in split(found).values():
        assert rule in known("Convolution", {})


def test_gradients_that_are_read_twice_are_left_alone() -> None:
    """A mark says nothing of the graph around it: where there is no such sum, the gradient stays as it is."""
    for symbol in (network(one(8, "a")), network(one(8, "a"), pooled), network(one(8, "a"), lambda x: x * 2)):
        found = case(symbol)
        wanted = {number: split_rule(False) for number, node in enumerate(found.graph.nodes)
                  if node.op == "Convolution"}  # fmt: skip
        assert len(apply_gradient_rules(found.training, wanted).nodes) == len(found.training.nodes)
        assert_same(run(marked(found, wanted)), run(found.symbol))


def test_every_convolution_may_be_marked() -> None:
    found = case(network(one(8, "a"), one(4, "b"), one(6, "c")))
    wanted = {number: split_rule(False) for number, node in enumerate(found.graph.nodes)
              if node.op == "Convolution"}  # fmt: skip
    marks = {original: {GRADIENT_ATTRIBUTE: rule.text} for original, rule in wanted.items()}
    bound = training_graph(found.graph, found.binding, mx.cpu(), marks)
    assert [replace(node, attrs={}) for node in apply_gradient_rules(found.training, wanted).nodes] == [
        replace(node, attrs={}) for node in bound.nodes
    ]
    assert_same(run(marked(found, wanted)), run(found.symbol))


@pytest.mark.parametrize("inputs", ["0,s1,2", "0,sx,2", "s0", "0,s,"])
def test_malformed_attributes_are_refused(inputs: str) -> None:
    found = case(NETWORKS["two"])
    (original,) = split(found)
    text = f"_backward_Convolution>_backward_Convolution:{inputs}"
    with pytest.raises(mx.MXNetError, match=r"expected OPERATOR>OPERATOR:INPUTS in __echo_gradient__"):
        run(symbol_of(found.graph.with_attrs({original: {GRADIENT_ATTRIBUTE: text}})))


def test_inputs_that_are_not_there_are_refused() -> None:
    found = case(NETWORKS["two"])
    (original,) = split(found)
    with pytest.raises(mx.MXNetError, match=r"reads 3 arrays, expected as many in __echo_gradient__, got 4"):
        run(marked(found, {original: split_rule(True)}))


# Plans -----------------------------------------------------------------------------------------------------------


def test_two_nodes_take_as_long_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    found = case(NETWORKS["two"])
    parted = apply_gradient_rules(found.training, split(found))
    before, after = (estimate(graph, CostTable("x"), None, 0.0) for graph in (found.training, parted))
    assert after.step_seconds == pytest.approx(before.step_seconds)
    weights, data = gradients(parted, "b")
    (whole,) = gradients(found.training, "b")
    assert after.seconds[weights] == after.seconds[data] == pytest.approx(before.seconds[whole] / 2)


def planned(monkeypatch: pytest.MonkeyPatch, parts: bool) -> Plan:
    with monkeypatch.context() as patch:
        patch.setattr(bind_plan, "PLANNER", Planner())
        if not parts:
            patch.setattr(echo.ir.gradient_rules, "split_gradients", lambda *_: {})
        return echo.plan(wide(), max_overhead=None, fuse=False, data=(4, 8, 32, 32))


def wide() -> Symbol:
    """Blocks whose widest map is read by two convolutions, as at the beginning of each stage of a ResNet."""
    with mx.name.NameManager():
        x = mx.sym.var("data")
        for block in range(5):
            x = conv(x, 64, f"wide{block}")
            x = mx.sym.Activation(mx.sym.BatchNorm(x, name=f"norm{block}"), act_type="relu", name=f"map{block}")
            x = conv(x, 8, f"left{block}") + conv(x, 8, f"right{block}")
        return mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(x)))


def test_plans_need_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unmeasured(*_: Any) -> float:
        raise UnmeasurableError("this test measures nothing")

    monkeypatch.setattr(MxnetFramework, "measure_function", lambda _: unmeasured)
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / "without"))
    without = planned(monkeypatch, False)
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / "with"))
    plan = planned(monkeypatch, True)
    assert plan.after.planned < 0.9 * without.after.planned
    assert sum(GRADIENT_ATTRIBUTE in mark.attrs for mark in plan.marks) == 5
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.every(3)
@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("name", ["resnet50_v1", "resnet50_v2", "inception_v3"])
def test_training_with_such_plans(name: str) -> None:
    model = SMALL[name]()
    values = random_arrays(model.symbol, model.shapes, limits=model.limits)
    optimized = echo.optimize(model.symbol, max_overhead=None, fuse=False)
    got = train(bind(optimized, values, model.grad_req()), steps=2)
    marks = [mark.attrs.get(GRADIENT_ATTRIBUTE, "") for mark in optimized.plans[-1].marks]
    assert any("s" in text.partition(":")[2] for text in marks)
    assert_same(got, train(bind(model.symbol, values, model.grad_req()), steps=2))
