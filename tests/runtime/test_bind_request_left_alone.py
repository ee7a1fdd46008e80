"""Binds that are left alone, and what planning is told of the others: shapes and names."""

from __future__ import annotations

import logging
from typing import Any, Callable

import mxnet as mx
import pytest

import echo
from echo.runtime import bind_request
from tests.support.bound_mlp import BATCH, CLASSES, FEATURES, body, network

pytestmark = pytest.mark.usefixtures("cheap_planning")


# What is left alone ------------------------------------------------------------------------------------------------


def untouched(bind: Callable[[], mx.executor.Executor], caplog: pytest.LogCaptureFixture) -> None:
    """Bound as MXNet binds it, without so much as a look."""
    with caplog.at_level(logging.DEBUG, "echo"), echo.enable(max_overhead=None, strict=True):
        bound = bind()
    assert type(bound) is mx.executor.Executor
    assert all(record.getMessage().startswith("echo: bound as it is: ") for record in caplog.records)


def test_inference_without_labels_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    def bind() -> mx.executor.Executor:
        module = mx.mod.Module(network(), label_names=None)
        module.bind([("data", (BATCH, FEATURES))], for_training=False)
        module.set_params({}, {}, allow_missing=True)
        module.forward(mx.io.DataBatch([mx.nd.ones((BATCH, FEATURES))]), is_train=False)
        assert module.get_outputs()[0].shape == (BATCH, CLASSES)
        return module._exec_group.execs[0]

    untouched(bind, caplog)
    untouched(lambda: mx.sym.tanh(body(), name="end").bind(mx.cpu(), *arguments()), caplog)


def arguments() -> tuple[list[mx.nd.NDArray], None, str, list[mx.nd.NDArray]]:
    shapes, _, aux_shapes = body().infer_shape(data=(BATCH, FEATURES))
    return [mx.nd.ones(shape) for shape in shapes], None, "write", [mx.nd.ones(shape) for shape in aux_shapes]


def test_model_parallel_graphs_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    def symbol() -> mx.sym.Symbol:
        with mx.AttrScope(ctx_group="one"):
            first = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="a"))
        with mx.AttrScope(ctx_group="two"):
            return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(first, num_hidden=4, name="b"), name="softmax")

    groups = {"one": mx.cpu(0), "two": mx.cpu(1)}
    untouched(lambda: symbol().simple_bind(mx.cpu(), group2ctx=groups, data=(4, 6)), caplog)


def test_sparse_arguments_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    weight = mx.sym.var("weight", stype="row_sparse", shape=(12, 4))
    symbol = mx.sym.tanh(mx.sym.tanh(mx.sym.sparse.dot(mx.sym.var("data", stype="csr"), weight)))
    arrays = {"data": mx.nd.ones((3, 12)).tostype("csr"), "weight": mx.nd.ones((12, 4)).tostype("row_sparse")}
    gradients = {"weight": mx.nd.zeros((12, 4)).tostype("row_sparse")}
    untouched(lambda: symbol.bind(mx.cpu(), arrays, gradients, {"data": "null", "weight": "write"}), caplog)
    untouched(lambda: symbol.simple_bind(mx.cpu(), grad_req={"data": "null", "weight": "write"}, data=(3, 12)), caplog)


# What planning is told ---------------------------------------------------------------------------------------------


def sparse() -> mx.sym.Symbol:
    return mx.sym.sum(mx.sym.var("data", stype="csr"))


@pytest.mark.parametrize(
    ("symbol", "given", "reason"),
    [
        (network(), {}, ""),
        (network(), {"grad_req": "null"}, "no argument needs a gradient"),
        (network(), {"group2ctx": {"a": mx.cpu(1)}}, "group2ctx spreads the graph over several devices"),
        (network(), {"stype_dict": {"data": "csr"}}, "sparse arguments"),
        (network(), {"stype_dict": {"data": "default"}}, ""),
        (sparse(), {}, "sparse arguments"),
    ],
)
def test_request_left_alone_has_its_reason(symbol: mx.sym.Symbol, given: dict[str, Any], reason: str) -> None:
    request = bind_request.simple_bind(symbol, mx.sym.Symbol.simple_bind, mx.cpu(), data=(4, 3), **given)
    assert request.untouched == reason


def test_arrays_say_what_shapes_say() -> None:
    symbol = network()
    shapes = {"data": (4, FEATURES), "softmax_label": (4,)}
    simple = bind_request.simple_bind(symbol, mx.sym.Symbol.simple_bind, mx.cpu(), **shapes)
    binding = simple.binding()
    names = symbol.list_arguments()
    args = {name: mx.nd.zeros(shape) for name, shape in zip(names, binding.arg_shapes)}
    aux = [mx.nd.zeros(shape) for shape in binding.aux_shapes]
    for given in (args, list(args.values())):
        request = bind_request.bind(symbol, mx.sym.Symbol.bind, mx.cpu(), given, args, "write", aux)
        assert (request.untouched, request.binding().key) == ("", binding.key)
    some = {name: array for name, array in args.items() if name != names[1]}
    partial = bind_request.bind(symbol, mx.sym.Symbol.bind, mx.cpu(), args, some, "add", aux).binding()
    assert partial.grad_req == tuple("null" if name == names[1] else "add" for name in names)
    assert bind_request.bind(symbol, mx.sym.Symbol.bind, mx.cpu(), args, {}).untouched == "no argument needs a gradient"


def test_known_shapes_are_handed_to_mxnet() -> None:
    """MXNet infers none of a graph with fused operators."""
    seen: list[Any] = []
    symbol = network()
    request = bind_request.simple_bind(symbol, lambda *args, **more: seen.append(more), mx.cpu(), data=(4, FEATURES))
    request.call(symbol)
    request.call(symbol, request.binding())
    assert seen[0] == {"data": (4, FEATURES)}
    assert set(seen[1]) == {*symbol.list_arguments(), *symbol.list_auxiliary_states()}


def test_names_that_are_no_arguments_are_passed_over() -> None:
    """As MXNet does: `Module` hands over all shapes that it knows."""
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4)
    call = bind_request.simple_bind(symbol, mx.sym.Symbol.simple_bind, mx.cpu(), data=(3, 5), nope=(3, 3))
    assert call.binding().arg_shapes[0] == (3, 5)
    assert call.call(symbol).arg_dict["data"].shape == (3, 5)
