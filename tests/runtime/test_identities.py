"""Identities between layers, as `nn.Dropout(0)` and `F.identity` are: they lose nothing, and every bit stays."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import echo
from echo.errors import OptionError
from tests.support.training import assert_same, bind, random_arrays, train

S = mx.sym
SAME: dict[str, Callable[[Any, Any], Any]] = {
    "identity": lambda F, x: F.identity(x),
    "two identities": lambda F, x: F.identity(F.identity(x)),
    "dropout of 0": lambda F, x: nn.Dropout(0)(x),
    "cast to the same type": lambda F, x: F.cast(x, "float32"),
    "reshape to the same shape": lambda F, x: F.reshape(x, shape=(0, 0, 0, 0)),
}


def layers(channels: int, same: Callable[[Any, Any], Any] | None) -> nn.HybridSequential:
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(3):
            net.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
            if same is not None:
                net.add(nn.HybridLambda(same))
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
    net.initialize()
    return net


def saved(net: nn.HybridBlock) -> float:
    plan = echo.plan(net, data=(8, 3, 24, 24), fuse=False)
    return 1 - plan.after.planned / plan.before.planned


@pytest.mark.every(2)
@pytest.mark.parametrize("name", SAME)
def test_identities_between_layers_cost_no_memory(name: str) -> None:
    assert saved(layers(16, SAME[name])) >= saved(layers(16, None)) - 0.01 > 0.2


def mixed(channels: int) -> mx.sym.Symbol:
    """Identities of maps in oneDNN's layouts and in the plain one, of a variable, a sum, and read by several."""
    x = S.var("x")
    y = S.Convolution(S.identity(x), kernel=(3, 3), pad=(1, 1), num_filter=channels, name="conv0")
    y = S.identity(S.BatchNorm(y, fix_gamma=False, name="bn0"), name="same0")
    y = S.identity(S.Activation(y, act_type="relu", name="act"), name="same1")
    other = S.identity(S.tanh(y, name="tanh") * S.identity(y))
    y = S.identity(S.Convolution(y, kernel=(3, 3), pad=(1, 1), num_filter=channels, name="conv1"))
    y = S.identity(S.BatchNorm(y + other, name="bn1"))
    y = S.Concat(S.Pooling(y, kernel=(2, 2), pool_type="max", stride=(2, 2)),
                 S.identity(S.Pooling(S.identity(y), kernel=(2, 2), pool_type="avg", stride=(2, 2))))  # fmt: skip
    y = S.BatchNorm(S.identity(S.exp(S.identity(y) * 0.1)), name="bn2")
    return S.Group([S.mean(S.square(y), axis=(2, 3)), S.identity(y, name="out")])


OPTIONS: dict[str, dict[str, Any]] = {
    "least": {"max_overhead": None}, "named": {"max_overhead": None, "recompute": ["bn0", "act", "same*", "tanh"]},
}  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("channels", [3, 8, 16, 32])
def test_identities_that_run_again_change_no_bit(channels: int, options: str, grad_req: str) -> None:
    symbol = mixed(channels)
    values = random_arrays(symbol, {"x": (2, 8, 12, 12)})
    optimized = echo.optimize(symbol, fuse=False, **OPTIONS[options])
    got = train(bind(optimized, values, grad_req))
    assert any(decision.op == "_copy" for decision in optimized.plans[-1].recomputed)
    assert_same(got, train(bind(symbol, values, grad_req)))


BLOCK_OPTIONS: dict[str, dict[str, Any]] = {"least": {"max_overhead": None}, "all": {"policy": "all"}}


class Mixed(nn.HybridBlock):
    """The same for a CachedOp: the copies of stashed arrays are not in place in its backward graph."""

    def __init__(self, channels: int) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.convs = nn.HybridSequential()
            self.norms = nn.HybridSequential()
            for _ in range(2):
                self.convs.add(nn.Conv2D(channels, 3, padding=1))
                self.norms.add(nn.BatchNorm())

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        for conv, norm in zip(self.convs, self.norms):
            x = F.identity(conv(F.identity(x)))
            x = F.identity(F.Activation(F.identity(norm(x)), act_type="relu"))
            x = F.identity(F.tanh(x) * F.identity(x)) + x
        return F.identity(x)


def trained(block: nn.HybridBlock, channels: int, static: bool, options: dict[str, Any] | None) -> list[Any]:
    mx.random.seed(7)
    block.initialize(mx.init.Uniform(0.3))
    net: Any = block if options is None else echo.optimize(block, fuse=False, **options)
    net.hybridize(static_alloc=static)
    data, found = mx.nd.random.normal(shape=(2, 8, 10, 10)), []
    data.attach_grad()
    for _ in range(2):
        with mx.autograd.record():
            out = net(data)
        out.backward()
        mx.nd.waitall()
        arrays = [parameter.data() for parameter in net.collect_params().values()]
        arrays += [parameter.grad() for parameter in net.collect_params().values() if parameter.grad_req != "null"]
        found += [array.asnumpy() for array in [out, data.grad, *arrays]]
    if options is not None:
        (plan,) = net._cached_op.plans.values()
        assert any(decision.op == "_copy" for decision in plan.recomputed) or "policy" in options
    return found


@pytest.mark.every(3)
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("options", BLOCK_OPTIONS)
@pytest.mark.parametrize("channels", [3, 8, 16, 32])
def test_identities_of_blocks_that_run_again_change_no_bit(channels: int, options: str, static: bool) -> None:
    got = trained(Mixed(channels), channels, static, BLOCK_OPTIONS[options])
    expected = trained(Mixed(channels), channels, static, None)
    assert [array.tobytes() for array in got] == [array.tobytes() for array in expected]
    assert all(np.isfinite(array).all() for array in got)


def test_why_names_what_is_refused() -> None:
    """The clone of a Dropout is a product, which has another layout."""
    y = S.Convolution(S.var("x"), kernel=(3, 3), pad=(1, 1), num_filter=16, name="conv")
    y = S.BatchNorm(y, name="bn")
    dropped = S.Dropout(S.Activation(y, act_type="relu", name="act"), p=0.3, name="drop")
    symbol = S.BatchNorm(S.square(dropped), name="last")
    plan = echo.plan(symbol, fuse=False, max_overhead=None, x=(2, 8, 12, 12))
    assert "another of oneDNN's layouts" in str(plan.why("drop:0"))


@pytest.mark.parametrize("cached", [False, True])
def test_copy_of_a_stashed_map_runs_again_only_in_place(cached: bool) -> None:
    """The backward graph of a CachedOp cannot compute over a stashed array: there the clone would be a plain array."""
    net = nn.HybridSequential(prefix="net_")
    net.add(nn.Conv2D(16, 3, padding=1), nn.HybridLambda(lambda F, x: F.identity(x)), nn.BatchNorm())
    net.initialize()
    options: dict[str, Any] = {"fuse": False, "max_overhead": None, "recompute": ["_copy"], "data": (2, 8, 12, 12)}
    if cached:
        with pytest.raises(OptionError, match=r"\(_copy\) cannot be recomputed"):
            echo.plan(net, **options)
    else:
        net(mx.nd.ones((2, 8, 12, 12)))
        plan = echo.plan(net(mx.sym.var("data")), **options, grad_req="write")
        assert [decision.op for decision in plan.recomputed] == ["_copy"]
