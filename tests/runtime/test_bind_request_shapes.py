"""How an executor was bound, read off it; and arrays in other shapes, in the same memory where it is enough."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

from echo.errors import EchoError
from echo.runtime.bind_request import binding_of, fitted, inferred_shapes, outgrow, requests_of, shapes_of, size_of

SYMBOL = mx.sym.BatchNorm(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="norm")
REQUESTS = {"data": "null", "fc_weight": "add", "fc_bias": "write", "norm_gamma": "write", "norm_beta": "write"}


@pytest.fixture(scope="module")
def executor() -> mx.executor.Executor:
    return SYMBOL.simple_bind(mx.cpu(), grad_req=REQUESTS, data=(4, 5))


def test_how_it_was_bound(executor: mx.executor.Executor) -> None:
    assert shapes_of(executor) == {
        "data": (4, 5), "fc_weight": (3, 5), "fc_bias": (3,), "norm_gamma": (3,), "norm_beta": (3,),
    }  # fmt: skip
    assert requests_of(executor) == list(REQUESTS.values())
    binding = binding_of(executor)
    assert binding.arg_shapes[0] == (4, 5)
    assert binding.aux_shapes == ((3,), (3,))
    assert binding.grad_req == tuple(REQUESTS.values())
    assert not binding.sparse


def test_argument_without_gradient_array_has_request_null() -> None:
    args = {name: mx.nd.zeros(shape) for name, shape in (("x", (2,)), ("y", (2,)))}
    bound = (mx.sym.var("x") + mx.sym.var("y")).bind(mx.cpu(), args, {"x": mx.nd.zeros((2,))}, "write")
    assert requests_of(bound) == ["write", "null"]


def test_shapes_that_reshape_was_given() -> None:
    shapes, states = inferred_shapes(SYMBOL, {"data": (7, 5), "other": (1,), "fc_weight": 3})
    assert (shapes["data"], shapes["fc_weight"], states) == ((7, 5), (3, 5), ((3,), (3,)))
    with pytest.raises(EchoError, match="does not infer every shape"):
        inferred_shapes(SYMBOL, {})


@pytest.mark.parametrize(
    ("shape", "longer"), [((4, 5), False), ((3, 5), False), ((5, 5), True), ((1, 6), True), ((20,), True)]
)
def test_whether_a_shape_is_longer(shape: tuple[int, ...], longer: bool) -> None:
    assert outgrow({"data": shape, "fc_bias": (3,)}, {"data": (4, 5), "fc_bias": (3,)}) == longer


@pytest.mark.parametrize(("shape", "shared"), [((2, 3), True), ((3, 2), True), ((1, 2), True), ((7,), False)])
def test_memory_is_used_again_where_it_is_enough(shape: Any, shared: bool) -> None:
    array = mx.nd.zeros((2, 3), dtype="float16")
    found = fitted(array, shape)
    assert (found.shape, found.dtype, size_of(shape)) == (shape, array.dtype, found.size)
    found[:] = 1
    assert bool(array.asnumpy().any()) == shared
    assert (found is array) == (shape == (2, 3))
    assert fitted(None, shape) is None
