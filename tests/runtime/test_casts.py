"""Blocks that are cast after they were called: their variables keep the types of the first call as attributes."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest
from mxnet.gluon import nn, rnn

import echo
from echo.plans.plan import Plan

SHAPE = (4, 3, 12, 12)


def convolutions() -> nn.HybridSequential:
    """With masks that are packed, and states of BatchNorm."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(3):
            net.add(nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.2))
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
    return net


class Recurrent(nn.HybridBlock):
    """An RNN operator, which becomes fused layers, between a BatchNorm and Dropout."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.norm, self.lstm, self.drop = nn.BatchNorm(), rnn.LSTM(8), nn.Dropout(0.2)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.drop(F.relu(self.lstm(self.norm(F.reshape(x, shape=(0, 0, -1))))))


class Elementwise(nn.HybridBlock):
    """MXNet has no products of float16 on CPUs."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.norms = nn.HybridSequential()
            self.norms.add(nn.BatchNorm(), nn.BatchNorm())
            self.drop = nn.Dropout(0.3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        for norm in self.norms:
            x = F.relu(self.drop(F.exp(F.tanh(x)) * x + norm(x)))
        return x


NETS = {"convolutions": convolutions, "recurrent": Recurrent, "elementwise": Elementwise}


def plan_of(name: str, *types: str) -> tuple[Plan, list[Any]]:
    """The plan of the net in the last of these types, after a call in each, and what a step then gives."""
    mx.random.seed(3)
    net: Any = NETS[name]()
    net.initialize(mx.init.Uniform(0.2))
    net = echo.optimize(net, strict=True, max_overhead=None)
    net.hybridize()
    for dtype in types:
        net.cast(dtype)
        data = mx.nd.random.uniform(shape=SHAPE).astype(dtype)
        mx.random.seed(5)
        with mx.autograd.record():
            out = net(data)
        out.backward()
    mx.nd.waitall()
    trained = [parameter for parameter in net.collect_params().values() if parameter.grad_req != "null"]
    return list(net._cached_op.plans.values())[-1], [out, *(parameter.grad() for parameter in trained)]


CASTS = [("convolutions", ("float32", "float64")), ("convolutions", ("float64", "float32")),
         ("convolutions", ("float32", "float64", "float32")), ("recurrent", ("float32", "float64")),
         ("recurrent", ("float64", "float32")), ("elementwise", ("float32", "float16")),
         ("elementwise", ("float16", "float32", "float16"))]  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize(("name", "types"), CASTS)
def test_block_that_was_cast_is_planned_as_one_of_that_type(name: str, types: tuple[str, ...]) -> None:
    plan, arrays = plan_of(name, *types)
    wanted, _ = plan_of(name, types[-1])
    assert not plan.failed
    assert (plan.after.planned, len(plan.fused)) == (wanted.after.planned, len(wanted.fused))
    assert arrays[0].dtype == mx.nd.array([0], dtype=types[-1]).dtype


def test_symbol_whose_states_have_another_type_than_its_attributes_is_planned() -> None:
    """A state is float32 by its attribute, and float64 by the array that the executor is given."""
    mean, variance = (mx.sym.var(name, dtype="float32") for name in ("mean", "variance"))
    norm = mx.sym.BatchNorm(mx.sym.var("data"), mx.sym.var("g"), mx.sym.var("b"), mean, variance, name="bn")
    symbol = mx.sym.Dropout(mx.sym.Activation(norm, act_type="relu"), p=0.3)
    optimized = echo.optimize(symbol, strict=True)
    given = {"data": SHAPE, "g": (3,), "b": (3,)}
    args = {name: mx.nd.ones(shape, dtype="float64") for name, shape in given.items()}
    states = [mx.nd.ones((3,), dtype="float64") for _ in range(2)]
    executor = optimized.bind(mx.cpu(), args, {"g": mx.nd.zeros((3,), dtype="float64")}, aux_states=states)
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones(SHAPE, dtype="float64")])
    assert not optimized.plans[-1].failed
