"""What cannot be bound: another MXNet, no symbol, nothing to train, wrong shapes; an error says what was expected."""

from __future__ import annotations

import re
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.errors import EchoError, OptionError, ShapeError, UnsupportedError
from tests.support.small_network import SHAPES, network
from tests.support.training import random_arrays

Symbol = mx.sym.Symbol
pytestmark = pytest.mark.usefixtures("cheap_planning")


# MXNet -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.8.0", "2.0.0b1", "1.9.10"])
def test_another_mxnet_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(mx, "__version__", version)
    for call in (echo.plan, echo.optimize):
        with pytest.raises(UnsupportedError, match=re.escape(f"expected mxnet 1.9.1, got {version}")):
            call(network(), **SHAPES)


@pytest.mark.parametrize("value", [None, 3, "symbol", np.zeros(3), mx.nd.zeros(3), [network()], network().tojson()])
def test_value_that_is_no_symbol_raises_option_error(value: Any) -> None:
    got = "None" if value is None else type(value).__name__
    for call in (echo.plan, echo.optimize):
        with pytest.raises(OptionError, match=rf"expected a Symbol .*got .*{got}$"):
            call(value, data=(3,))


# Nothing to train ------------------------------------------------------------------------------------------------


def test_symbol_without_gradients_raises_unsupported_error() -> None:
    with pytest.raises(UnsupportedError, match="no argument needs a gradient"):
        echo.plan(network(), grad_req="null", **SHAPES)
    everything = dict(zip(network().list_arguments(), network().infer_shape(**SHAPES)[0]))
    with pytest.raises(UnsupportedError, match="no argument needs a gradient"):
        echo.plan(network(), **everything)


def test_binding_without_gradients_leaves_the_graph_alone() -> None:
    optimized = echo.optimize(network())
    optimized.simple_bind(mx.cpu(), grad_req="null", **SHAPES)
    args = {name: mx.nd.array(value) for name, value in random_arrays(network(), SHAPES).items()}
    optimized.bind(mx.cpu(), args)
    optimized.bind(mx.cpu(), args, {}, "write")
    optimized.bind(mx.cpu(), args, {name: mx.nd.zeros(array.shape) for name, array in args.items()}, "null")
    assert optimized.plans == []


def test_symbol_without_arguments() -> None:
    constant = mx.sym.zeros((2, 3)) + 1
    with pytest.raises(UnsupportedError, match="no argument needs a gradient"):
        echo.plan(constant)
    executor = echo.optimize(constant).bind(mx.cpu(), {})
    assert executor.forward()[0].asnumpy().tolist() == [[1.0] * 3] * 2


# Shapes ----------------------------------------------------------------------------------------------------------


def test_unknown_shapes_are_named() -> None:
    with pytest.raises(ShapeError, match=r"^the shape of data, label is unknown, expected those of .* data="):
        echo.plan(network())
    with pytest.raises(ShapeError, match=r"^the shape of data is unknown, expected it next to label"):
        echo.plan(network(), label=(16,))
    for shape in ((0, 20), (16, -1)):
        with pytest.raises(ShapeError, match=r"data: expected sizes of 1 or more .0 and -1 stand for unknown"):
            echo.plan(network(), data=shape, label=(16,))
    with pytest.raises(ShapeError, match=r"^MXNet cannot infer the shapes from .*\(-5, 20\).*: Check failed: [^\n]*-5"):
        echo.plan(network(), data=(-5, 20), label=(16,))


def test_contradicting_shapes() -> None:
    with pytest.raises(ShapeError, match="fc1"):
        echo.plan(network(), fc1_weight=(3, 3), **SHAPES)


@pytest.mark.parametrize("value", [8, "8,20", None, ("a",), 2.5, "32", (16, 20.5), (16, 20.0), (True, 20)])
def test_invalid_shape_raises_shape_error(value: Any) -> None:
    with pytest.raises(ShapeError, match=r"data: expected a shape such as \(128, 50\), got " + re.escape(repr(value))):
        echo.plan(network(), data=value)


@pytest.mark.parametrize("value", [(2**31, 2), (2**16, 2**16), (10**400,), (2**31, 0)])
def test_shapes_that_mxnet_cannot_count(value: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"data: expected a shape of less than 2\*\*31 elements, got \("):
        echo.plan(network(), data=value, label=(16,))


def test_shapes_of_nothing_are_refused() -> None:
    with pytest.raises(OptionError, match="'dta'"):
        echo.plan(network(), dta=(16, 20))


def test_binding_with_unknown_shapes_fails_as_mxnet_does() -> None:
    def failure(symbol: Symbol) -> Exception:
        with pytest.raises((RuntimeError, mx.MXNetError, EchoError)) as caught:
            symbol.simple_bind(mx.cpu(), grad_req="write", label=(16,))
        return caught.value

    assert type(failure(echo.optimize(network()))) is type(failure(network()))
    with pytest.raises(ShapeError, match="shape of data is"):
        echo.optimize(network(), strict=True).simple_bind(mx.cpu(), grad_req="write", label=(16,))
