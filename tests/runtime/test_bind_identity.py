"""An optimized symbol reads, saves, copies and composes as the user's own, whose graph stays as it is."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest

import echo
from echo.frontend import symbols
from echo.ir.graph import Graph
from echo.runtime import bind as optimized_symbol
from echo.runtime.bind import OptimizedSymbol
from tests.support.bound_network import GRADIENTS, LOW_BOUND, SHAPES, network, was_planned
from tests.support.training import Record, assert_same, bind, random_arrays, recomputing, train

Symbol = mx.sym.Symbol
pytestmark = pytest.mark.usefixtures("cheap_planning")


# The symbol itself -------------------------------------------------------------------------------------------------


def test_symbol_reads_as_the_users(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    bind(optimized, values, GRADIENTS)
    plain = network()
    assert isinstance(optimized, Symbol)
    assert optimized.tojson() == plain.tojson()
    assert optimized.name == plain.name
    assert optimized.list_arguments() == plain.list_arguments()
    assert optimized.list_auxiliary_states() == plain.list_auxiliary_states()
    assert optimized.list_outputs() == plain.list_outputs()
    assert optimized.list_attr() == plain.list_attr()
    assert optimized.attr_dict() == plain.attr_dict()
    assert optimized.infer_shape(**SHAPES) == plain.infer_shape(**SHAPES)
    assert optimized.infer_type(data="float32") == plain.infer_type(data="float32")
    assert optimized.debug_str() == plain.debug_str()
    assert len(optimized) == len(plain)


def test_optimize_leaves_the_users_symbol_alone(values: dict[str, Any], expected: Record) -> None:
    plain = network()
    before = plain.tojson()
    optimized = echo.optimize(plain, **LOW_BOUND)
    bind(optimized, values, GRADIENTS)
    assert plain.tojson() == before
    assert type(plain) is Symbol
    executor = bind(plain, values, GRADIENTS)
    assert "_echo\n" not in executor.debug_str()
    assert_same(train(executor), expected)


def test_saved_files_are_the_users(optimized: OptimizedSymbol, values: dict[str, Any], tmp_path: Path) -> None:
    bind(optimized, values, GRADIENTS)
    for name, symbol in (("echo", optimized), ("plain", network())):
        symbol.save(str(tmp_path / f"{name}.json"))
    assert (tmp_path / "echo.json").read_bytes() == (tmp_path / "plain.json").read_bytes()


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle", "__copy__"])
def test_copies_stay_optimized(optimized: OptimizedSymbol, values: dict[str, Any], expected: Record, way: str) -> None:
    bind(optimized, values, GRADIENTS)
    made = {
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "pickle": lambda symbol: pickle.loads(pickle.dumps(symbol)),
        "__copy__": lambda symbol: symbol.__copy__(),
    }[way](optimized)
    assert isinstance(made, OptimizedSymbol)
    assert made.handle.value != optimized.handle.value
    assert made.options == optimized.options
    assert made.plans == []
    assert made.tojson() == optimized.tojson()
    assert_same(train(bind(made, values, GRADIENTS)), expected)
    assert was_planned(made)
    del made
    assert optimized.list_outputs() == ["softmax_output"]


def test_parts_and_compositions_are_plain(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    plain = network()
    assert optimized.get_internals().list_outputs() == plain.get_internals().list_outputs()
    assert optimized.get_internals()["pool_output"].tojson() == plain.get_internals()["pool_output"].tojson()
    assert optimized[0].tojson() == plain[0].tojson()
    assert optimized["softmax_output"].tojson() == plain["softmax_output"].tojson()
    assert [part.tojson() for part in optimized] == [part.tojson() for part in plain]
    assert optimized.get_children().list_outputs() == plain.get_children().list_outputs()
    pair = mx.sym.Group([optimized, mx.sym.BlockGrad(optimized)])
    assert pair.list_outputs()[0] == "softmax_output"
    assert (optimized * 2).list_arguments() == plain.list_arguments()
    optimized.get_internals()["pool_output"].simple_bind(mx.cpu(), data=SHAPES["data"])


def test_attributes_set_later_are_kept(values: dict[str, Any]) -> None:
    with mx.AttrScope(ctx_group="one", __mood__="calm"):
        symbol = network()
    optimized = echo.optimize(symbol, **LOW_BOUND)
    optimized._set_attr(__colour__="blue")
    assert optimized.attr("__colour__") == "blue"
    assert optimized.attr("__mood__") == "calm"
    assert symbol.attr("__colour__") is None
    bind(optimized, values, GRADIENTS)
    assert was_planned(optimized)


def test_optimizing_twice_is_the_same(optimized: OptimizedSymbol, values: dict[str, Any], expected: Record) -> None:
    twice = echo.optimize(optimized, **LOW_BOUND)
    assert twice.tojson() == network().tojson()
    assert_same(train(bind(twice, values, GRADIENTS)), expected)
    assert was_planned(twice)
    assert optimized.plans == []
    plans = [bound.plans[-1] for bound in (twice, optimized) if bound.plans or bind(bound, values, GRADIENTS)]
    assert plans[0] == plans[1]


def test_shapes_given_at_once_plan_at_once(values: dict[str, Any], expected: Record) -> None:
    optimized = echo.optimize(network(), **LOW_BOUND, **SHAPES)
    assert was_planned(optimized)
    assert_same(train(bind(optimized, values, GRADIENTS)), expected)
    assert optimized.plans[0] == optimized.plans[1]


# Graphs that MXNet rewrites before it differentiates them -----------------------------------------------------------


def with_equal_expressions() -> Symbol:
    """x * y twice: MXNet merges equal expressions, and sums their gradients before it differentiates the product."""
    data = mx.sym.var("data")
    x, y = (mx.sym.FullyConnected(data, num_hidden=64, name=name) for name in "xy")
    first, second = (mx.sym.elemwise_mul(x, y, name=name) for name in ("first", "second"))
    heads = [mx.sym.tanh(first, name="tanh"), mx.sym.sigmoid(second, name="sigmoid")]
    heads = [mx.sym.FullyConnected(head, num_hidden=8, name=f"head{index}") for index, head in enumerate(heads)]
    return mx.sym.Group([mx.sym.sum(mx.sym.square(head), name=f"sum{index}") for index, head in enumerate(heads)])


@pytest.mark.parametrize("names", [("first",), ("second",), ("first", "second"), ("first", "tanh", "sigmoid")])
def test_equal_expressions(names: tuple[str, ...]) -> None:
    symbol = with_equal_expressions()
    values = random_arrays(symbol, {"data": (32, 64)})
    expected = train(bind(symbol, values))
    optimized = echo.optimize(symbol, recompute=names)
    assert_same(train(bind(optimized, values)), expected)


def test_equal_expressions_are_merged_by_the_marked_graph_too() -> None:
    symbol = with_equal_expressions()
    values = random_arrays(symbol, {"data": (32, 64)})
    both = recomputing(symbol, {"first": [0], "second": [0]})
    assert_same(train(bind(both, values)), train(bind(symbol, values)))


def test_attributes_of_the_user_survive_rewriting() -> None:
    """Attributes, subgraph operators and hidden keys reach the executor as they were."""
    with mx.AttrScope(__lr_mult__="2", __wd_mult__="0.5"):
        symbol = network()
    optimized = echo.optimize(symbol, **LOW_BOUND)
    executor = optimized.simple_bind(mx.cpu(), grad_req=GRADIENTS, **SHAPES)
    assert executor._symbol.attr_dict() == symbol.attr_dict()
    assert json.loads(optimized.tojson()) == json.loads(symbol.tojson())


# Its graph ---------------------------------------------------------------------------------------------------------


def test_a_symbol_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `echo.optimize`; by binds only where the program has changed it since."""
    texts: list[str] = []
    full = symbols.graph_from

    def read(text: str) -> Graph:
        texts.append(text)
        return full(text)

    for module in (symbols, optimized_symbol):
        monkeypatch.setattr(module, "graph_from", read)
    x = mx.sym.FullyConnected(mx.sym.tanh(mx.sym.var("data")), num_hidden=4, name="fc")
    optimized = echo.optimize(x)
    for size in (8, 9):
        optimized.simple_bind(mx.cpu(), data=(size, 8))
    assert sum('"fc_weight"' in text for text in texts) == 1
    optimized._set_attr(__colour__="red")
    assert optimized.graph().nodes[-1].attrs["__colour__"] == "red"
