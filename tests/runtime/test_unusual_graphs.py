"""Graphs of unusual form: tiny, empty, with strange names and outputs, marked before, on two devices."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.errors import OptionError
from echo.frontend.symbols import graph_of, symbol_of
from echo.ir.op_spec import PLAN_ATTRIBUTE
from echo.plans.decisions import mark
from tests.support.small_network import SHAPES, check_identical, network, trained
from tests.support.training import assert_same, bind, random_arrays, train

Symbol = mx.sym.Symbol
pytestmark = pytest.mark.usefixtures("cheap_planning")


def test_a_variable_alone() -> None:
    variable = mx.sym.var("data")
    optimized = echo.optimize(variable)
    expected = train(bind(variable, {"data": np.ones((2, 3), "float32")}))
    assert_same(train(bind(optimized, {"data": np.ones((2, 3), "float32")})), expected)
    assert all(plan.changes_nothing for plan in optimized.plans)


def test_one_operator() -> None:
    symbol = mx.sym.tanh(mx.sym.var("data"), name="tanh")
    optimized = echo.optimize(symbol, max_overhead=None)
    values = random_arrays(symbol, {"data": (4, 5)})
    assert_same(train(bind(optimized, values)), train(bind(symbol, values)))
    assert optimized.plans[-1].changes_nothing
    assert echo.plan(symbol, data=(4, 5), grad_req="write").recomputed == ()


def test_one_operator_on_a_scalar() -> None:
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(mx.sym.var("data"))))
    optimized = echo.optimize(symbol, max_overhead=None)
    values = random_arrays(symbol, {"data": (1,)})
    assert_same(train(bind(optimized, values)), train(bind(symbol, values)))


@pytest.fixture
def numpy_shapes() -> Iterator[None]:
    """0 is a size there, not "unknown"."""
    before = mx.util.set_np_shape(True)
    yield
    mx.util.set_np_shape(before)


@pytest.mark.usefixtures("numpy_shapes")
def test_arrays_without_elements() -> None:
    data = mx.sym.var("data")
    hidden = data
    for layer in range(3):
        hidden = mx.sym.tanh(hidden, name=f"tanh{layer}") * mx.sym.sigmoid(hidden)
    empty = mx.sym.tanh(mx.sym.slice(hidden, begin=(2,), end=(2,), name="empty"), name="nothing")
    symbol = mx.sym.Group([mx.sym.concat(mx.sym.square(empty), hidden, dim=0), mx.sym.sum(mx.sym.square(hidden))])
    # stock MXNet binds such a graph and fails to run it
    plan = echo.plan(symbol, data=(64, 30), grad_req="write", max_overhead=None)
    recomputed = {decision.name for decision in plan.recomputed}
    assert recomputed
    assert not recomputed & {"nothing", "empty"}
    for name in ("nothing", "empty"):
        with pytest.raises(OptionError, match="an array without elements"):
            echo.plan(symbol, data=(64, 30), grad_req="write", recompute=name)


@pytest.mark.usefixtures("numpy_shapes")
def test_a_batch_without_elements() -> None:
    symbol = mx.sym.sum(mx.sym.square(mx.sym.tanh(mx.sym.var("data") * mx.sym.var("weight"))))
    values = {"data": np.zeros((0, 4), "float32"), "weight": np.zeros((0, 4), "float32")}
    optimized = echo.optimize(symbol, max_overhead=None)
    assert_same(train(bind(optimized, values)), train(bind(symbol, values)))
    assert echo.plan(symbol, grad_req="write", data=(0, 4), weight=(0, 4)).changes_nothing


def test_nodes_of_the_same_name() -> None:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="fc")
    for _ in range(4):
        hidden = mx.sym.tanh(hidden, name="same") * mx.sym.sigmoid(hidden, name="same")
    scores = mx.sym.FullyConnected(hidden, num_hidden=10, name="scores")
    symbol = mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="softmax")
    plan = check_identical(symbol, SHAPES, label=10)
    assert "same" in {decision.name for decision in plan.recomputed}
    assert len({decision.node for decision in plan.recomputed}) > 2
    everything = echo.plan(symbol, recompute="same", **SHAPES)
    assert len([decision for decision in everything.recomputed if decision.name == "same"]) == 8


def test_nodes_without_names_and_with_strange_ones() -> None:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="n7")
    for name in ("n12", "n0_echo", "größe, (0)", "a b\tc", "Op:x, Name=y", "__echo_recompute__"):
        hidden = mx.sym.tanh(hidden, name=name) * mx.sym.sigmoid(hidden, name=f"{name}_mirror")
    scores = mx.sym.FullyConnected(hidden, num_hidden=10, name="n1")
    symbol = mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="")
    assert len(check_identical(symbol, SHAPES, label=10).recomputed) > 3


def test_variables_of_the_same_name() -> None:
    first, second = mx.sym.var("same", shape=(8, 30)), mx.sym.var("same", shape=(8, 30))
    hidden = mx.sym.tanh(first * 2) * mx.sym.sigmoid(second)
    symbol = mx.sym.sum(mx.sym.square(mx.sym.tanh(hidden)))

    def run(symbol: Symbol) -> list[Any]:
        arrays = [mx.nd.array(np.random.RandomState(seed).normal(0, 1, (8, 30))) for seed in (0, 1)]
        gradients = [mx.nd.zeros((8, 30)) for _ in arrays]
        executor = symbol.bind(mx.cpu(), arrays, gradients)
        executor.forward(is_train=True)
        executor.backward(mx.nd.ones((1,)))
        return [executor.outputs[0].asnumpy(), *(gradient.asnumpy() for gradient in gradients)]

    for got, expected in zip(run(echo.optimize(symbol, max_overhead=None)), run(symbol)):
        assert got.tobytes() == expected.tobytes()


def test_group_with_inner_and_repeated_heads_trains_to_stocks_bits() -> None:
    """Heads that are inner maps too, one of them twice, and a variable among them."""
    with mx.name.NameManager():
        data = mx.sym.var("data")
        hidden = mx.sym.FullyConnected(data, num_hidden=64, name="fc")
        maps = [hidden]
        for layer in range(5):
            maps.append(mx.sym.tanh(maps[-1], name=f"tanh{layer}") * mx.sym.sigmoid(maps[-1], name=f"gate{layer}"))
        loss = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(maps[-1]), name="sum"))
        symbol = mx.sym.Group([maps[2], loss, maps[2], mx.sym.Group([maps[-1], mx.sym.BlockGrad(maps[3])])])
    values = random_arrays(symbol, {"data": (16, 20)})
    optimized = echo.optimize(symbol, max_overhead=None)
    assert optimized.list_outputs() == symbol.list_outputs()
    assert_same(train(bind(optimized, values)), train(bind(symbol, values)))
    names = [decision.name for decision in optimized.plans[-1].recomputed]
    assert names
    assert "_mul1" not in names  # a head


def test_several_outputs_of_one_node_as_heads() -> None:
    with mx.name.NameManager():
        hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64), name="hidden")
        parts = mx.sym.SliceChannel(mx.sym.sigmoid(hidden) * hidden, num_outputs=4, name="parts")
        symbol = mx.sym.Group([parts[1], mx.sym.square(mx.sym.tanh(parts[3])), parts[0]])
    values = random_arrays(symbol, {"data": (16, 20)})
    optimized = echo.optimize(symbol, max_overhead=None)
    assert_same(train(bind(optimized, values)), train(bind(symbol, values)))


def test_symbol_optimized_twice() -> None:
    once = echo.optimize(network(), max_overhead=None, fuse=False)
    twice = echo.optimize(once, max_overhead=None, fuse=False)
    assert twice.tojson() == network().tojson()
    expected = trained(network(), SHAPES, label=10)
    assert_same(trained(twice, SHAPES, label=10), expected)
    assert_same(trained(once, SHAPES, label=10), expected)
    assert once.plans == twice.plans
    other = echo.optimize(twice, max_overhead=0.0)
    trained(other, SHAPES, label=10)
    assert other.plans[-1].overhead == 0.0
    assert once.options.max_overhead is None


@pytest.mark.parametrize("way", ["attribute", "environment"])
def test_graphs_that_mirror_already(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "environment":
        monkeypatch.setenv("MXNET_BACKWARD_DO_MIRROR", "1")
        symbol = network()
    else:
        with mx.AttrScope(force_mirroring="True"):
            hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="fc"), name="tanh")
            hidden = mx.sym.sigmoid(hidden, name="gate") * hidden
        for layer in range(4):
            hidden = mx.sym.tanh(hidden, name=f"tanh{layer}") * mx.sym.sigmoid(hidden)
        scores = mx.sym.FullyConnected(hidden, num_hidden=10, name="scores")
        symbol = mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="softmax")
    optimized = echo.optimize(symbol, max_overhead=None, fuse=False)
    assert_same(trained(optimized, SHAPES, label=10), trained(symbol, SHAPES, label=10))
    plan = optimized.plans[-1]
    assert plan.after.planned <= plan.before.planned


def test_a_marked_graph_is_planned_afresh() -> None:
    """A symbol that was saved from a marked graph."""
    graph = graph_of(network())
    tanh = [number for number, node in enumerate(graph.nodes) if node.op == "tanh"]
    marked = symbol_of(mark(graph, {number: [0] for number in tanh}, hook=True))
    optimized = echo.optimize(marked, keep="tanh", max_overhead=None, fuse=False)
    assert_same(trained(optimized, SHAPES, label=10), trained(network(), SHAPES, label=10))
    assert "tanh" not in {decision.op for decision in optimized.plans[-1].recomputed}
    values = random_arrays(network(), SHAPES, limits={"label": 10})
    assert "Op:tanh, Name=tanh0_echo" not in bind(optimized, values).debug_str()


@pytest.mark.filterwarnings("ignore:Cannot decide type")  # of SymbolBlock
@pytest.mark.parametrize("mark", ["0", "7", "0@9999", "nonsense"])
def test_marks_in_the_users_graph_change_nothing(mark: str, caplog: pytest.LogCaptureFixture) -> None:
    """As of a symbol that was saved from a planned graph, perhaps by another version, in all ways to use it."""
    graph = graph_of(network())
    marks = {
        number: {PLAN_ATTRIBUTE: mark} for number, node in enumerate(graph.nodes) if node.op in ("tanh", "Dropout")
    }
    marked, expected = symbol_of(graph.with_attrs(marks)), trained(network(), SHAPES, label=10)
    with echo.enable(fuse=False):
        assert_same(trained(marked, SHAPES, label=10), expected)
        block = mx.gluon.SymbolBlock(marked, [mx.sym.var("data"), mx.sym.var("label")])
        block.initialize()
        block.hybridize(static_alloc=True)
        with mx.autograd.record():
            output = block(mx.nd.ones((16, 20)), mx.nd.zeros((16,)))
        output.backward()
        mx.nd.waitall()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_several_devices_are_left_alone() -> None:
    with mx.AttrScope(ctx_group="one"):
        hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="fc"))
    with mx.AttrScope(ctx_group="two"):
        symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(mx.sym.tanh(hidden) * hidden)))
    optimized = echo.optimize(symbol, max_overhead=None)
    optimized.simple_bind(mx.cpu(), group2ctx={"one": mx.cpu(0), "two": mx.cpu(1)}, data=(16, 20))
    assert optimized.plans == []


def test_sparse_gradients() -> None:
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=50, output_dim=16, sparse_grad=True, name="embedding")
    hidden = mx.sym.FullyConnected(words, num_hidden=64, name="fc")
    for layer in range(4):
        hidden = mx.sym.tanh(hidden, name=f"tanh{layer}") * mx.sym.sigmoid(hidden)
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(hidden)))

    def run(symbol: Symbol) -> dict[str, Any]:
        executor = symbol.simple_bind(mx.cpu(), data=(16, 5), grad_req={
            name: "null" if name == "data" else "write" for name in symbol.list_arguments()
        })  # fmt: skip
        for name, value in random_arrays(symbol, {"data": (16, 5)}, limits={"data": 50}).items():
            executor.arg_dict[name][:] = value
        assert executor.grad_dict["embedding_weight"].stype == "row_sparse"
        executor.forward(is_train=True)
        executor.backward()
        mx.nd.waitall()
        return {name: array.asnumpy() for name, array in executor.grad_dict.items() if array is not None}

    assert_same(run(echo.optimize(symbol, max_overhead=None)), run(symbol))
