"""Where operators work in place: as in the original graph, wherever bits could depend on it."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.errors import OptionError
from echo.estimators.inplace import as_stock, memory_frozen_reason, moved
from echo.estimators.storage_planner import blocks
from echo.frontend.capture import training_graph
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, infer_binding, symbol_of
from echo.ir.graph import Entry
from echo.ir.op_spec import NO_INPLACE_ATTRIBUTE
from echo.plans.decisions import mark
from tests.support.training import assert_same, bind, random_arrays, train

S = mx.sym
Shapes = dict[str, tuple[int, ...]]
pytestmark = pytest.mark.usefixtures("cheap_planning")


def residual(channels: int = 8) -> mx.sym.Symbol:
    """Dropout may work in place as soon as the map before it is recomputed, and then keeps a blocked layout."""
    x = S.var("x")
    y = S.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=channels, no_bias=True, name="conv")
    y = S.Activation(S.BatchNorm(y, fix_gamma=False, name="bn1"), act_type="relu", name="act")
    return S.BatchNorm(S.Dropout(y, p=0.3, name="drop") + x, name="bn2")


def scaled(channels: int) -> mx.sym.Symbol:
    """An operator without an implementation of oneDNN instead of Dropout."""
    x = S.var("x")
    y = S.BatchNorm(S.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=channels, name="conv"), name="bn1")
    y = S.Activation(y, act_type="relu", name="act") * 0.5
    other = S.Convolution(y, kernel=(1, 1), num_filter=channels, name="conv2")
    return S.BatchNorm(S.elemwise_add(y, other) - 0.25, name="bn2")


def prelu(channels: int) -> mx.sym.Symbol:
    """The block of face recognition networks."""
    d = S.var("x")
    for i, filters in enumerate((channels, 2 * channels)):
        d = S.Convolution(d, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=f"c{i}")
        d = S.BatchNorm(d, fix_gamma=False, name=f"b{i}")
        d = S.LeakyReLU(d, act_type="prelu", name=f"p{i}")
        d = S.Pooling(d, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"m{i}")
    return d


def softsign(channels: int) -> mx.sym.Symbol:
    """An activation without an implementation of oneDNN."""
    y = S.Convolution(S.var("x"), kernel=(3, 3), pad=(1, 1), num_filter=channels, name="conv")
    y = S.Activation(S.BatchNorm(y, fix_gamma=False, name="bn1"), act_type="softsign", name="act")
    other = S.Activation(S.BatchNorm(y, name="bn2") * 0.5, act_type="softsign", name="act2")
    return S.Pooling(other, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")


MODELS = {"residual": residual, "scaled": scaled, "prelu": prelu, "softsign": softsign}
SIZES = ((4, 8, 6, 6), (2, 3, 8, 8), (2, 16, 14, 14), (2, 32, 10, 10))
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"max_overhead": None}, {"max_overhead": None, "policy": "all"}, {"policy": "mincut", "max_overhead": None},
    {"policy": "sublinear", "max_overhead": None}, {"policy": "echo", "max_overhead": None},
)  # fmt: skip


@pytest.mark.every(5)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_bits_where_layouts_follow_storage(name: str, size: tuple[int, ...]) -> None:
    symbol = MODELS[name](size[1])
    values = random_arrays(symbol, {"x": size})
    expected = train(bind(symbol, values, "write"))
    for options in OPTIONS:
        optimized = echo.optimize(symbol, fuse=False, **options)
        assert_same(train(bind(optimized, values, "write")), expected)


def captured(symbol: mx.sym.Symbol, shapes: Shapes, **marks: Any) -> Any:
    assert install_hook() == ""
    graph = graph_of(symbol)
    return training_graph(graph, infer_binding(symbol, shapes), mx.cpu(), **marks)


def test_a_recomputed_map_lets_no_other_work_in_place() -> None:
    symbol, shapes = residual(), {"x": (4, 8, 6, 6)}
    stock = captured(symbol, shapes)
    graph = graph_of(symbol)
    number = {node.name: number for number, node in enumerate(graph.nodes)}
    marked = mark(graph, {number["bn1"]: [0], number["act"]: [0]}, hook=True)
    settled = as_stock(stock, "cpu")
    assert "Dropout:0>0" in settled.no_inplace[number["drop"]]

    def in_place(of: Any) -> bool:
        drop = next(i for i, node in enumerate(of.nodes) if node.op == "Dropout")
        return bool(blocks(of).inplace[of.first_entry[drop]] == 0)

    free = captured(symbol_of(marked), shapes)
    assert in_place(free)  # what MXNet does by itself
    assert not in_place(stock)
    held = captured(
        symbol_of(marked.with_attrs({n: {NO_INPLACE_ATTRIBUTE: t} for n, t in settled.no_inplace.items()})), shapes
    )
    assert not in_place(held)


def test_map_overwritten_in_place_is_not_recomputed_from() -> None:
    """The sum of `residual` takes the memory of what Dropout gave: a copy of the sum alone would need that."""
    x = S.var("x")
    y = S.BatchNorm(S.Convolution(x, kernel=(1, 1), num_filter=8, name="conv"), name="bn1")
    symbol = S.BatchNorm(S.sin(S.elemwise_add(y, x, name="sum"), name="sin"), name="bn2")
    training = as_stock(captured(symbol, {"x": (4, 8, 6, 6)}), "cpu")
    number = {node.name: number for number, node in training.operators() if node.forward}
    first = training.first_entry[number["sum"]]
    assert blocks(training).inplace[first] == 0
    alone = [Entry(number["sum"])]
    backward = next(i for i, node in training.operators() if not node.forward)
    assert moved(training, "cpu", alone, {number["sum"]: (backward,)}) == {number["sum"]}
    both = [*alone, Entry(number["bn1"])]
    assert not moved(training, "cpu", both, {n: (backward,) for n in (number["sum"], number["bn1"])})
    with pytest.raises(OptionError, match=r"'sum' \(elemwise_add\) cannot be recomputed"):
        echo.plan(symbol, recompute=["sum"], keep=["bn1"], max_overhead=None, fuse=False, x=(4, 8, 6, 6))


def test_graphs_without_layouts_are_left_alone() -> None:
    y = S.FullyConnected(S.Activation(S.FullyConnected(S.var("x"), num_hidden=8), act_type="relu"), num_hidden=8)
    training = captured(S.Dropout(S.Activation(y, act_type="relu")), {"x": (4, 8)})
    assert as_stock(training, "cpu") is training
    conv = captured(residual(), {"x": (4, 8, 6, 6)})
    assert as_stock(conv, "gpu") is conv


@pytest.mark.parametrize("build", [S.identity, S.BlockGrad, S.Flatten], ids=["_copy", "BlockGrad", "Flatten"])
def test_operators_that_only_hand_on_are_kept_apart(build: Any) -> None:
    """MXNet knows of these, pair by pair, that no kernel has to run in place, and wants as many flags as pairs."""
    symbol, shapes = S.cos(build(S.sin(S.var("x")), name="handed on")), {"x": (4, 8)}
    graph = graph_of(symbol)
    number = next(number for number, node in enumerate(graph.nodes) if node.name == "handed on")
    apart = symbol_of(graph.with_attrs({number: {NO_INPLACE_ATTRIBUTE: f"{graph.nodes[number].op}:0>0"}}))

    def in_place(training: Any) -> bool:
        node = next(i for i, node in enumerate(training.nodes) if node.name == "handed on")
        return bool(blocks(training).inplace[training.first_entry[node]] == 0)

    assert in_place(captured(symbol, shapes))
    assert not in_place(captured(apart, shapes))
    arrays = random_arrays(symbol, shapes)
    assert_same(train(bind(apart, arrays)), train(bind(symbol, arrays)))


MALFORMED = ("Dropout", "Dropout:", "Dropout:0", "Dropout:0>", "Dropout:0>0,", "Dropout:0>0;", ":0>0x")


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_marks_are_refused(text: str) -> None:
    symbol = residual()
    graph = graph_of(symbol)
    number = next(number for number, node in enumerate(graph.nodes) if node.op == "Dropout")
    assert install_hook() == ""
    bad = symbol_of(graph.with_attrs({number: {NO_INPLACE_ATTRIBUTE: text}}))
    with pytest.raises(RuntimeError, match="__echo_apart__"):
        bad.simple_bind(mx.cpu(), x=(4, 8, 6, 6))


def test_equal_slices_of_a_block_are_not_merged() -> None:
    """SliceChannel keeps a state, so MXNet merges no two of them; what takes its place must not be merged either."""

    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, y: Any) -> Any:
            parts = [F.split(F.concat(y, y, dim=2), num_outputs=2, axis=2) for _ in range(2)]
            one, two = (part[0] * F.sigmoid(part[1]) for part in parts)
            return one + 0.01 * two

    found = []
    for optimized in (False, True):
        net = Net()
        net.hybridize()
        if optimized:
            echo.optimize(net, fuse=False)
        data = mx.nd.array(np.random.RandomState(0).normal(0, 0.5, (8, 5, 16)))
        data.attach_grad()
        with mx.autograd.record():
            loss = (net(data) ** 2).mean()
        loss.backward()
        found.append(data.grad.asnumpy())
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_a_masked_softmax_never_loses_its_lengths(static: bool) -> None:
    """Its gradient sets that of the lengths to zero first: in place, over the lengths that it is about to read."""

    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any, valid: Any) -> Any:
            scores = F.batch_dot(F.sin(x), F.cos(x), transpose_b=True)
            lengths = F.cast(F.broadcast_like(F.expand_dims(valid, axis=1), F.sum(scores, axis=2)), dtype="int32")
            return F.batch_dot(F.softmax(scores, axis=-1, length=lengths, use_length=True), F.tanh(x))

    found = []
    for options in (None, {"policy": "all", "max_overhead": None}, {}):
        net = Net()
        net.hybridize(static_alloc=static)
        if options is not None:
            echo.optimize(net, fuse=False, **options)
        data = mx.nd.array(np.random.RandomState(0).normal(0, 0.5, (6, 8, 16)))
        data.attach_grad()
        with mx.autograd.record():
            loss = (net(data, mx.nd.array([3, 8, 2, 5, 1, 7])) ** 2).mean()
        loss.backward()
        found.append(data.grad.asnumpy())
    assert abs(found[0]).max() > 0
    assert all((each == found[0]).all() for each in found[1:])


def test_options_that_change_numbers_are_those_of_the_user() -> None:
    scores = S.sin(S.var("x"))
    lengths = S.cast(S.round(S.var("lengths")), dtype="int32")
    symbol = S.softmax(scores, lengths, axis=-1, use_length=True, name="masked") * S.var("y")
    stock = captured(symbol, {"x": (4, 8), "lengths": (4,), "y": (4, 8)})
    settled = as_stock(stock, "gpu")
    for before, after in zip(stock.nodes, settled.nodes):
        if before.op == "_backward_softmax":
            first = stock.first_entry[stock.nodes.index(before)]
            taken = [(i, o) for i, o, _ in before.inplace if blocks(stock).inplace[first + o] == i]
            assert [(i, o) for i, o, _ in after.inplace] == taken
            assert len(taken) < len(before.inplace)


def test_control_flow_next_to_convolutions_is_left_as_it_is() -> None:
    """It looks at its arrays when work is handed out: what shares their chunks may still be in another layout."""
    x = S.var("x")
    y = S.Activation(S.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=16, name="conv"), act_type="relu")
    loop, _ = S.contrib.foreach(lambda part, state: (part * state[0], [part * state[0]]), S.sin(x), [S.var("s")])
    symbol = S.Group([S.sum(S.sin(y)), S.sum(loop)])
    for options in ({}, {"policy": "all", "max_overhead": None}, {"fuse": False}):
        plan = echo.plan(symbol, grad_req="write", x=(2, 8, 12, 12), s=(8, 12, 12), **options)
        assert plan.changes_nothing
        assert any("looks at its arrays too early" in decision.reason for decision in plan.decisions)
    alone = echo.plan(loop, grad_req="write", x=(2, 8, 12, 12), s=(8, 12, 12), max_overhead=None, policy="all")
    assert not any("too early" in decision.reason for decision in alone.decisions)


class Condition(mx.gluon.HybridBlock):
    """What recomputes much, before a condition."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        y = F.sin(F.square(F.sin(x)))
        return F.contrib.cond(F.sum(y) < 2, lambda: y * 2, lambda: y + 1)


def test_graphs_with_a_condition_are_left_as_they_are() -> None:
    """MXNet adds its gradients to what memory holds."""
    net, x = Condition(), mx.nd.ones((64, 64))
    net.hybridize()
    block = echo.optimize(net, policy="all", max_overhead=None)
    x.attach_grad()
    with mx.autograd.record():
        y = block(x)
    y.backward()
    symbol = echo.optimize(net(S.var("x")), policy="all", max_overhead=None)
    symbol.bind(mx.cpu(), {"x": x}, {"x": x.grad})
    for plan in (*block._cached_op.plans.values(), *symbol.plans):
        assert plan.changes_nothing
        assert any("to what memory holds" in decision.reason for decision in plan.decisions)


def test_a_condition_in_a_loop_counts() -> None:
    def step(part: Any, state: Any) -> Any:
        found = S.contrib.cond(S.sum(part) < 2, lambda: part * 2, lambda: part + 1)
        return found, [S.sin(state[0])]

    outputs, _ = S.contrib.foreach(step, S.sin(S.var("x")), [S.var("s")])
    assert "_cond" in memory_frozen_reason(graph_of(outputs), "cpu")


def test_map_read_for_its_shape_is_not_recomputed() -> None:
    x = S.var("x") * 2
    ones = S.ones_like(x, name="ones")
    y = S.Convolution(S.square(S.elemwise_mul(x, ones)), kernel=(3, 3), pad=(1, 1), num_filter=16, name="conv")
    symbol = S.sin(S.Activation(y, act_type="relu"))
    values = random_arrays(symbol, {"x": (2, 16, 12, 12)})
    optimized = echo.optimize(symbol, fuse=False, max_overhead=None, policy="all")
    got = train(bind(optimized, values, "write"))
    assert_same(got, train(bind(symbol, values, "write")))
    assert "ones" not in {decision.node for decision in optimized.plans[-1].recomputed}
