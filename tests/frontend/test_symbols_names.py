"""Arrays that have the names of parameters of MXNet's functions: their models plan and bind as others do."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.errors import ShapeError
from echo.frontend.symbols import infer_binding, infer_shapes, infer_types
from tests.support.training import assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")
NAMES = ["self", "partial"]


def network(data: str = "data", weight: str = "weight") -> mx.sym.Symbol:
    hidden = mx.sym.FullyConnected(mx.sym.var(data), mx.sym.var(weight), no_bias=True, num_hidden=16, name="fc")
    hidden = mx.sym.BatchNorm(hidden, name="norm")
    for layer in range(3):
        hidden = mx.sym.tanh(mx.sym.FullyConnected(hidden, num_hidden=16, name=f"fc{layer}"), name=f"tanh{layer}")
    return mx.sym.sum(hidden)


@pytest.mark.parametrize("name", NAMES)
def test_inference_gives_the_values_of_another_name(name: str) -> None:
    found = infer_shapes(network(name), {name: (8, 4), "norm_moving_mean": (16,)})
    assert found == infer_shapes(network(), {"data": (8, 4), "norm_moving_mean": (16,)})
    assert infer_shapes(network(name), {name: ()}, partial=True) == infer_shapes(network(), {}, partial=True)
    assert infer_shapes(network(name), {name: ()}) == (None, None, None)
    assert infer_types(network(name), {name: np.float16}) == infer_types(network(), {"data": np.float16})
    with pytest.raises(ShapeError, match=r"the shape of .*weight.* is unknown"):
        infer_binding(network(name), {name: ()})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("by_keyword", [True, False])
def test_plan_is_that_of_another_name(name: str, by_keyword: bool) -> None:
    options: dict[str, Any] = {"max_overhead": None, "fuse": False}
    found = echo.plan(network(name), **options, **({name: (8, 4)} if by_keyword else {"shapes": {name: (8, 4)}}))
    other = echo.plan(network(), **options, data=(8, 4))
    assert (found.before, found.after, found.recomputed) == (other.before, other.after, other.recomputed)
    assert echo.profile(network(name), compare=["echo", "mirror"], **options, shapes={name: (8, 4)}).usages


@pytest.mark.parametrize("data", ["partial", "symbol", "original"])
@pytest.mark.parametrize("transparent", [True, False])
def test_executor_trains_as_that_of_stock_mxnet(data: str, transparent: bool) -> None:
    stock = trained(network(data, "self").simple_bind(mx.cpu(), **{data: (8, 4)}), data)
    if transparent:
        with echo.enable(max_overhead=None, fuse=False, strict=True):
            executor = network(data, "self").simple_bind(mx.cpu(), **{data: (8, 4)})
    else:
        executor = echo.optimize(network(data, "self"), max_overhead=None, fuse=False).simple_bind(
            mx.cpu(), **{data: (8, 4)}
        )
    assert type(executor).__name__ == "PlannedExecutor"
    assert_same(trained(executor, data), stock)


@pytest.mark.parametrize("weight", ["self", "ctx"])
def test_fused_operators_stay_with_a_weight_named_like_a_parameter(
    weight: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, bias = mx.sym.var("data"), mx.sym.var("bias")
    gates = mx.sym.SliceChannel(mx.sym.FullyConnected(data, mx.sym.var(weight), bias, num_hidden=64), num_outputs=4)
    i, f, o = (mx.sym.sigmoid(gates[place]) for place in (0, 1, 3))
    cell = f * mx.sym.var("cell") + i * mx.sym.tanh(gates[2])
    symbol = mx.sym.Group([o * mx.sym.tanh(cell), cell])
    symbol = echo.optimize(symbol, strict=True)
    symbol.simple_bind(mx.cpu(), data=(8, 16), cell=(8, 16))
    assert [name for name, _ in symbol.plans[-1].fused] == ["lstm_cell"]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def trained(executor: mx.executor.Executor, data: str) -> dict[str, Any]:
    for name, array in executor.arg_dict.items():
        array[:] = np.random.RandomState(len(name)).normal(0, 1, array.shape)
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones((1,))])
    mx.nd.waitall()
    return {"output": executor.outputs[0].asnumpy(), **{n: a.asnumpy() for n, a in executor.grad_dict.items()}}
