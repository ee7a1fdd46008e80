"""What a plan is made for: the same under any names and in any process, another with any other bit of structure."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import mxnet as mx
import pytest

from echo.errors import GraphError
from echo.frontend.plan_key import plan_key
from echo.frontend.symbols import graph_of, infer_binding
from echo.ir.graph import Entry, Graph, Node
from echo.plans.key import PlanKey, digest, operators

ROOT = Path(__file__).parents[2]
Symbol = mx.sym.Symbol


def network(act: str = "tanh", prefix: str = "", width: int = 8) -> Symbol:
    """Without a prefix MXNet numbers the nodes as it likes."""
    named: Callable[[str], dict[str, str]] = lambda name: {"name": prefix + name} if prefix else {}  # noqa: E731
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=width, **named("fc"))
    hidden = mx.sym.Activation(hidden, act_type=act, **named("act"))
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.BatchNorm(hidden * hidden, **named("norm"))))


def plan_key_of(symbol: Symbol, runner: str = "executor", device: str = "cpu", **more: Any) -> PlanKey:
    shapes = {"data": (4, 6), **more.pop("shapes", {})}
    return plan_key(graph_of(symbol), infer_binding(symbol, shapes, **more), device, runner)


def test_names_do_not_count() -> None:
    first = plan_key_of(network())
    assert plan_key_of(network()) == first  # fullyconnected1, activation1, ...
    assert plan_key_of(network(prefix="mine_")) == first
    assert plan_key_of(network(prefix="mine_")).fingerprint == first.fingerprint
    assert len(first.fingerprint) == 32


def gluon(layers: int = 2, attributes: dict[str, str] | None = None) -> Symbol:
    net = mx.gluon.nn.HybridSequential()
    for _ in range(layers):
        net.add(mx.gluon.nn.Dense(4, activation="relu"), mx.gluon.nn.BatchNorm())
    with mx.AttrScope(**(attributes or {})):
        return net(mx.sym.var("data"))


def test_the_counters_of_gluon_do_not_count() -> None:
    assert digest(graph_of(gluon())) == digest(graph_of(gluon()))
    assert digest(graph_of(gluon())) != digest(graph_of(gluon(3)))


def test_a_block_that_is_hybridized_again_is_the_same_graph() -> None:
    """MXNet counts on, in the variables of the block, how often BatchNorm was made."""
    block = mx.gluon.nn.HybridSequential()
    norm = mx.gluon.nn.BatchNorm()
    block.add(norm, mx.gluon.nn.Dense(4), norm)  # the second BatchNorm reads what the first has written
    block.initialize()
    graphs = []
    for _ in range(3):
        block.hybridize()
        block(mx.nd.ones((2, 4)))
        graphs.append(graph_of(block._cached_graph[1]))
    assert len({digest(graph) for graph in graphs}) == 1
    versions = [sorted({entry.version for node in graph.nodes for entry in node.inputs}) for graph in graphs]
    assert versions[0] != versions[1], "or this shows nothing"
    other = [node._with(inputs=tuple(entry._replace(version=0) for entry in node.inputs)) for node in graphs[0].nodes]
    assert digest(replace(graphs[0], nodes=tuple(other))) != digest(graphs[0]), "which of the two is read first counts"


def test_scopes_of_the_profiler_count_as_one_or_another() -> None:
    graphs = [graph_of(gluon(attributes={"__profiler_scope__": name})) for name in ("net0:", "net1:")]
    assert digest(graphs[0]) == digest(graphs[1])
    number = next(number for number, node in enumerate(graphs[0].nodes) if node.op == "Activation")
    assert digest(graphs[0].with_attrs({number: {"__profiler_scope__": "other:"}})) != digest(graphs[0])


def of_attributes(*attributes: dict[str, str], inside: tuple[Graph, ...] = ()) -> Graph:
    """A chain of nodes with these attributes on one variable; the last has subgraphs."""
    nodes = [Node("null", "x")]
    for attrs in attributes:
        nodes.append(Node("op", f"n{len(nodes)}", (Entry(len(nodes) - 1),), (), attrs))
    nodes.append(Node("op", "last", (Entry(len(nodes) - 1),), (0,), {}, inside))
    return Graph(tuple(nodes), (Entry(len(nodes) - 1),), (0,), tuple(range(len(nodes) + 1)))


def test_every_attribute_and_subgraph_counts_in_any_order() -> None:
    first, swapped = {"a": "1", "b": "2"}, {"b": "2", "a": "1"}
    assert digest(of_attributes(first, first)) == digest(of_attributes(swapped, first))
    attributes = [(), ({},), (first,), ({"a": "2", "b": "1"},), ({"1": "a", "2": "b"},), ({"a": "1"},)]
    graphs = [of_attributes(*chosen) for chosen in attributes]
    others = [of_attributes(first, *chosen) for chosen in attributes[1:]] + [of_attributes({}, first)]
    others += [of_attributes(first, inside=(graph,)) for graph in graphs]
    others += [of_attributes(first, inside=(graphs[0], graphs[0]))]
    assert len({digest(graph) for graph in others}) == len(others)


def test_digest_ignores_unknown_facts_of_parameters() -> None:
    net = mx.gluon.nn.Dense(4)
    before = digest(graph_of(net(mx.sym.var("data"))))
    other = mx.gluon.nn.Dense(4, in_units=6, weight_initializer="zeros")
    other.weight.lr_mult = 3.0
    assert digest(graph_of(other(mx.sym.var("x")))) == before


OTHERS: dict[str, tuple[Callable[[], PlanKey], str]] = {
    "attribute": (lambda: plan_key_of(network("relu")), "graph: the same operators, with other attributes"),
    "operator": (lambda: plan_key_of(mx.sym.tanh(network())), "graph: expected 6 operators, got 7 (1 more tanh)"),
    "shape": (
        lambda: plan_key_of(network(), shapes={"data": (5, 6)}), "argument 'data': expected shape (4, 6), got (5, 6)"
    ),
    "type": (
        lambda: plan_key_of(network(), types={"data": "float64"}), "argument 'data': expected type float32, got float64"
    ),
    "request": (lambda: plan_key_of(network(), grad_req="add"), "argument 'data': expected grad_req write, got add"),
    "runner": (lambda: plan_key_of(network(), "static"), "runner: expected an executor, got a static CachedOp"),
    "device": (lambda: plan_key_of(network(), device="gpu"), "device: expected cpu, got gpu"),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_first_difference_of_keys_is_named(what: str) -> None:
    own = plan_key_of(network())
    other, text = OTHERS[what][0](), OTHERS[what][1]
    assert other != own
    assert other.fingerprint != own.fingerprint
    names = [*network().list_arguments(), *network().list_auxiliary_states()]
    assert next(own.differences(other, names)).startswith(text)
    assert list(own.differences(own, names)) == []


def test_settings_of_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NNVM_EXEC_MATCH_RANGE", raising=False)
    own = plan_key_of(network())
    monkeypatch.setenv("NNVM_EXEC_MATCH_RANGE", "4")
    assert list(own.differences(plan_key_of(network()), [])) == ["NNVM_EXEC_MATCH_RANGE: expected '', got '4'"]


def test_operators_are_counted() -> None:
    assert operators(graph_of(network())) == {
        "FullyConnected": 1, "Activation": 1, "elemwise_mul": 1, "BatchNorm": 1, "sum": 1, "MakeLoss": 1
    }  # fmt: skip


def test_json_there_and_back() -> None:
    own = plan_key_of(network())
    assert PlanKey.from_json(own.to_json()) == own
    with pytest.raises(GraphError, match="key: KeyError: 'arguments'"):
        PlanKey.from_json({})
    with pytest.raises(GraphError, match="key: settings must be a mapping"):
        PlanKey.from_json({**own.to_json(), "settings": ["a"]})
    assert replace(own, graph="other") != own


@pytest.mark.slow
def test_equal_in_every_process() -> None:
    names = "from tests.plans.test_key import *"
    code = names + "; [network() for _ in range({})]; print(plan_key_of(network()).fingerprint)"
    found = set()
    for seed in range(3):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code.format(seed)],
            capture_output=True, text=True, env=environment, cwd=ROOT, check=True, timeout=120,
        )  # fmt: skip
        found.add(done.stdout.strip())
    assert found == {plan_key_of(network()).fingerprint}
