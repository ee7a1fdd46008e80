"""Tests of `echo.frontend.symbols`: files; symbols."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from echo.errors import GraphError, OptionError, ShapeError
from echo.frontend.symbols import (
    Binding,
    grad_reqs,
    graph_of,
    graph_with,
    infer_binding,
    load,
    load_symbol,
    numbered_symbol,
    sparse_gradients,
    symbol_of,
    text_of,
    type_name,
    types_of,
    why_left_alone,
    with_attrs,
)
from echo.ir.graph import VARIABLE, Entry, Node


def test_saved_symbol_loads_unchanged(tmp_path: Path) -> None:
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc", attr={"__text__": "a\tb"})
    symbol.save(str(tmp_path / "symbol.json"))
    found = load_symbol(tmp_path / "symbol.json")
    assert found.tojson() == symbol.tojson()


@pytest.mark.parametrize("text", ["", "[]", '{"nodes": 3}', '{"nodes": [], "nodes": []}', "\xff"])
def test_file_without_symbol_raises_graph_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "symbol.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(GraphError, match=f"{path} is not a symbol saved by MXNet"):
        load_symbol(path)


def test_symbol_that_mxnet_refuses_raises_one_line(tmp_path: Path) -> None:
    path = tmp_path / "symbol.json"
    value = json.loads(mx.sym.tanh(mx.sym.var("x")).tojson())
    value["nodes"][1]["op"] = "no_such_operator"
    path.write_text(json.dumps(value))
    with pytest.raises(GraphError, match=f"{path}: MXNet cannot load it: .*no_such_operator") as caught:
        load_symbol(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_symbol(tmp_path / "nothing")


def test_symbols_of_a_newer_mxnet_are_named_as_such(tmp_path: Path) -> None:
    nodes = [{"op": "null", "name": "x", "inputs": []}, {"op": "_npi_wonder", "name": "w", "inputs": [[0, 0, 0]]}]
    value = {"nodes": nodes, "arg_nodes": [0], "heads": [[1, 0, 0]], "attrs": {"mxnet_version": ["int", 20000]}}
    path = tmp_path / "symbol.json"
    for version, said in ((20000, " was saved by MXNet 2.0.0: MXNet"), (10901, ": MXNet"), ("x", ": MXNet")):
        path.write_text(json.dumps({**value, "attrs": {"mxnet_version": ["int", version]}}))
        with pytest.raises(GraphError) as caught:
            load_symbol(path)
        assert str(caught.value).startswith(f"{path}{said}")
        assert "_npi_wonder" in str(caught.value)


def network() -> mx.sym.Symbol:
    hidden = mx.sym.BatchNorm(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5, name="fc"), name="norm")
    parts = mx.sym.SliceChannel(hidden, num_outputs=5, name="parts")
    return mx.sym.Group([parts[3], mx.sym.Cast(parts[0], dtype="float16", name="half")])


@pytest.mark.parametrize("text", ["plain", "tab\there", "snow ☃", 'quote " and \\u0041', "\\", "line\nbreak", "\x01"])
def test_attributes_of_all_kinds_survive(text: str) -> None:
    symbol = mx.sym.tanh(mx.sym.var("x", attr={"__text__": text}), name="it")
    again = symbol_of(graph_of(symbol))
    assert again.attr_dict()["x"]["__text__"] == text
    assert graph_of(again) == graph_of(symbol)
    assert text_of(again) == text_of(symbol)


def test_outputs_and_auxiliary_states_keep_their_places() -> None:
    again = symbol_of(graph_of(network()))
    assert again.list_outputs() == network().list_outputs() == ["parts_output3", "half_output"]
    assert again.list_auxiliary_states() == ["norm_moving_mean", "norm_moving_var"]
    assert load(graph_of(network()).to_json()).list_arguments() == network().list_arguments()


def test_a_symbol_of_echos_own_takes_nothing_of_the_programs_scopes() -> None:
    with mx.AttrScope(__scope__="x"):
        symbol = symbol_of(graph_with(Node(VARIABLE, "x"), Node("tanh", "it", (Entry(0),))))
    assert symbol.list_outputs() == ["it_output"]
    assert symbol.attr_dict() == {}


def test_attributes_of_a_copy_are_those_of_the_way_through_json() -> None:
    layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=10, name="fc")
    parts = mx.sym.SliceChannel(mx.sym.BatchNorm(layer, name="norm"), num_outputs=5, name="parts")
    graph = graph_of(mx.sym.Group([parts[3], mx.sym.tanh(parts[1], name="tanh")]))
    symbol = numbered_symbol(graph)
    numbers = {node.name: number for number, node in enumerate(graph.nodes)}
    before = text_of(symbol)
    for names in ((), ("parts",), ("tanh", "norm", "fc", "parts"), tuple(numbers)):
        added = {numbers[name]: {"__echo_recompute__": f"0@{name}", "__other__": ""} for name in names}
        marked = graph.with_attrs(added)
        copy = with_attrs(symbol, graph, marked)
        assert copy is not None
        assert text_of(copy) == text_of(numbered_symbol(marked)), "hidden attributes, and parameters as they were"
    assert text_of(symbol) == before, "the symbol of a graph is shared"


def test_other_nodes_are_no_attributes_of_a_copy() -> None:
    graph = graph_of(network())
    symbol = numbered_symbol(graph)
    renamed = graph.with_names([f"{node.name}_" for node in graph.nodes])
    more = graph_of(mx.sym.tanh(network()[0]))
    fewer = graph.with_attrs({0: {"__mark__": "1"}})
    assert with_attrs(symbol, graph, renamed) is None
    assert with_attrs(symbol, graph, more) is None
    assert with_attrs(numbered_symbol(fewer), fewer, graph) is None


def test_binding_infers_shapes_types_and_requests() -> None:
    found = infer_binding(network(), {"data": (4, 3)}, grad_req={"fc_weight": "add"})
    assert dict(zip(network().list_arguments(), found.arg_shapes)) == {
        "data": (4, 3), "fc_weight": (5, 3), "fc_bias": (5,), "norm_gamma": (5,), "norm_beta": (5,),
    }  # fmt: skip
    assert found.aux_shapes == ((5,), (5,))
    assert found.grad_req == ("null", "add", "null", "null", "null")
    assert all(np.dtype(kind) == np.float32 for kind in found.arg_types)
    arrays = [mx.nd.zeros(shape) for shape in found.arg_shapes], [mx.nd.zeros(shape) for shape in found.aux_shapes]
    assert Binding.of_arrays(*arrays, found.grad_req).key == found.key


def test_types_that_are_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    cast = mx.sym.FullyConnected(mx.sym.cast(mx.sym.var("data"), dtype="float16"), num_hidden=2, name="fc")
    assert infer_binding(cast, {"data": (3, 4)}).arg_types == (np.float32, np.float16, np.float16)  # as in a Module
    weight = mx.sym.var("weight", dtype="float16")  # as Gluon exports a block that was cast
    whole = mx.sym.FullyConnected(mx.sym.var("data"), weight, num_hidden=2, no_bias=True)
    assert infer_binding(whole, {"data": (3, 4)}).arg_types == (np.float16, np.float16)
    with pytest.raises(ShapeError, match=r"cannot infer the types from \{'data': 'float32'\}: .*expected float"):
        infer_binding(whole, {"data": (3, 4)}, {"data": np.float32})
    both = mx.sym.Group([cast, mx.sym.FullyConnected(mx.sym.var("data"), weight, num_hidden=2, no_bias=True)])
    mixed = mx.sym.broadcast_add(both[1], mx.sym.FullyConnected(mx.sym.var("b", dtype="float64"), num_hidden=2))
    with pytest.raises(ShapeError, match="cannot infer the types from float32: Error in operator"):
        infer_binding(mixed, {"data": (3, 4), "b": (3, 4)})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, r"the shape of data.* is unknown, expected those of the inputs, as data=\(128, 50\)"),
        ({"data": (4, 3), "dta": (1,)}, r"shapes are given for \['dta'\], expected some of the arguments"),
        ({"data": (4, 3), "fc_weight": (5, 4)}, "MXNet cannot infer the shapes from"),
    ],
)
def test_shapes_that_do_not_do(shapes: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        infer_binding(network(), shapes)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("add", ("add", "add")), (["null", "write"], ("null", "write")), ({"b": "add"}, ("null", "add"))],
)
def test_gradient_requests(given: Any, expected: tuple[str, ...]) -> None:
    assert grad_reqs(["a", "b"], given) == expected


@pytest.mark.parametrize(
    ("given", "got"), [("wrong", "'wrong'"), (["write"], "1 for 2 arguments"), ({"a": "wrote"}, "'wrote'")]
)
def test_gradient_requests_that_are_none(given: Any, got: str) -> None:
    with pytest.raises(OptionError, match=f"for each argument, got {got}"):
        grad_reqs(["a", "b"], given)


def test_types_of_every_entry_that_can_be_read() -> None:
    graph = graph_of(network())
    found = types_of(graph, infer_binding(network(), {"data": (4, 3)}))
    at = {node.name: number for number, node in enumerate(graph.nodes)}
    assert [str(found[Entry(at["parts"], index)].shape) for index in range(5)] == ["(4, 1)"] * 5
    assert found[Entry(at["half"])].dtype == "float16"
    assert found[Entry(at["fc_weight"])].shape == (5, 3)


def test_sparse_gradients_are_those_of_embeddings_that_say_so() -> None:
    dense, sparse = (mx.sym.Embedding(mx.sym.var(f"x{on}"), input_dim=5, output_dim=3, sparse_grad=on, name=f"e{on}")
                     for on in (False, True))  # fmt: skip
    both = mx.sym.Group([dense, sparse])
    assert {both.list_arguments()[place] for place in sparse_gradients(both)} == {"eTrue_weight"}
    assert sparse_gradients(dense) == frozenset()


def test_sparse_gradients_are_those_of_sparse_embeddings() -> None:
    x, dense = mx.sym.var("x"), mx.sym.Embedding(mx.sym.var("y"), input_dim=5, output_dim=3, name="dense")
    both = mx.sym.Group([dense, mx.sym.contrib.SparseEmbedding(x, mx.sym.var("w"), input_dim=5, output_dim=3)])
    assert {both.list_arguments()[place] for place in sparse_gradients(both)} == {"w"}


def test_graphs_with_graphs_inside_and_errors_of_storage_are_left_alone() -> None:
    loop = mx.sym.contrib.foreach(lambda part, state: (part * state, part), mx.sym.var("x"), mx.sym.var("s"))[0]
    assert "binds _foreach (" in why_left_alone(graph_of(loop), "anything")
    plain = graph_of(mx.sym.var("x") * 2)
    text = "Operator not implemented: operator = _backward_X input storage types = [default, ]"
    assert "sparse arrays of _backward_X" in why_left_alone(plain, text)
    assert why_left_alone(plain, "Check failed: shape") == ""


def test_names_of_types() -> None:
    assert [type_name(kind) for kind in (np.float16, "int32", np.dtype([("bfloat16", np.uint16)]))] == [
        "float16", "int32", "bfloat16",
    ]  # fmt: skip
