"""Gradients of a pass that was recorded in training, by a backward pass that is not: stock's, or an error."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import echo
from echo.errors import UnsupportedError
from tests.support.training import assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")
FLAGS: dict[str, dict[str, bool]] = {
    "dynamic": {},
    "static alloc": {"static_alloc": True},
    "static": {"static_alloc": True, "static_shape": True},
}
REFUSED = r"backward\(train_mode=False\) .* recomputes BatchNorm: .* keep=\('BatchNorm',\)"
BACKWARD: dict[str, Callable[[Any, Any], Any]] = {
    "array": lambda loss, weight: loss.backward(train_mode=False),
    "backward": lambda loss, weight: autograd.backward([loss], train_mode=False),
    "grad": lambda loss, weight: autograd.grad(loss, [weight], train_mode=False),
}


@pytest.fixture(params=["nd", "np"])
def arrays(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Any]]:
    if request.param == "nd":
        yield mx.nd.array
        return
    mx.npx.set_np()
    try:
        yield mx.np.array
    finally:
        mx.npx.reset_np()


def net(norm: Callable[[], gluon.HybridBlock], dropout: float = 0.0) -> nn.HybridSequential:
    block = nn.HybridSequential(prefix="net_")
    with block.name_scope():
        for _ in range(3):
            block.add(nn.Dense(24), nn.Activation("tanh"), norm(), nn.Activation("sigmoid"), nn.Dropout(dropout))
        block.add(nn.Dense(5))
    return block


def made(on: bool, flags: dict[str, bool], norm: Any = nn.BatchNorm, **options: Any) -> nn.HybridSequential:
    dropout = options.pop("dropout", 0.0)
    with mx.name.NameManager():
        mx.random.seed(3)
        block = net(norm, dropout)
        block.initialize(mx.init.Xavier())
        block.hybridize(**flags)
        return echo.optimize(block, max_overhead=None, fuse=False, **options) if on else block


def inputs(arrays: Callable[[Any], Any], seed: int = 0) -> Any:
    return arrays(np.random.RandomState(seed).normal(0, 1, (8, 12)).astype("float32"))


def recorded(block: gluon.HybridBlock, data: Any) -> Any:
    with autograd.record():
        return (block(data) ** 2).sum()


def recomputed(block: gluon.HybridBlock) -> int:
    return sum(plan.recomputed_nodes for plan in block._cached_op.plans.values())


def gradients(block: gluon.HybridBlock) -> dict[str, Any]:
    mx.nd.waitall()
    found = {name: param for name, param in block.collect_params().items() if param.grad_req != "null"}
    return {f"gradient {name}": param.grad().asnumpy() for name, param in found.items()}


@pytest.mark.every(5)
@pytest.mark.parametrize("way", BACKWARD)
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_refused_where_batch_norm_would_run_again(flags: dict[str, bool], way: str, arrays: Any) -> None:
    block = made(True, flags, recompute="BatchNorm")
    loss = recorded(block, inputs(arrays))
    assert recomputed(block)
    with pytest.raises(UnsupportedError, match=REFUSED):
        BACKWARD[way](loss, next(iter(block.collect_params().values())).data())
    loss.backward()  # nothing is lost
    stock = made(False, flags)
    recorded(stock, inputs(arrays)).backward()
    assert_same(gradients(block), gradients(stock))


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
@pytest.mark.parametrize(
    "given",
    [
        {"keep": "BatchNorm"},
        {"norm": lambda: nn.BatchNorm(use_global_stats=True), "recompute": "BatchNorm"},
        {"norm": lambda: nn.LayerNorm(), "dropout": 0.3},
    ],
    ids=["kept", "global statistics", "dropout"],
)
def test_the_same_bits_where_the_mode_does_not_matter(given: dict[str, Any], flags: dict[str, bool]) -> None:
    found = []
    for on in (False, True):
        own = given if on else {name: value for name, value in given.items() if name not in ("keep", "recompute")}
        block = made(on, flags, **own)
        for step in range(2):
            mx.random.seed(step)
            recorded(block, inputs(mx.nd.array, step)).backward(train_mode=False)
        found.append(gradients(block))
    assert recomputed(block)
    assert any(value.any() for value in found[0].values())
    assert_same(found[1], found[0])


def test_refused_in_transparent_mode() -> None:
    with echo.enable(max_overhead=None):
        block = made(False, {})
        loss = recorded(block, inputs(mx.nd.array))
        assert recomputed(block)
        with pytest.raises(UnsupportedError, match=REFUSED):
            loss.backward(train_mode=False)


def test_refused_after_a_backward_pass_that_kept_the_graph() -> None:
    loss = recorded(made(True, {}), inputs(mx.nd.array))
    loss.backward(retain_graph=True)
    with pytest.raises(UnsupportedError, match=REFUSED):
        loss.backward(train_mode=False)


def test_refused_where_one_of_several_passes_was_training() -> None:
    block = made(True, {})
    with autograd.record():
        trained = block(inputs(mx.nd.array)).sum()
        with autograd.predict_mode():
            predicted = block(inputs(mx.nd.array, 1)).sum()
        loss = trained + predicted
    with pytest.raises(UnsupportedError, match=REFUSED):
        autograd.backward([predicted, loss], train_mode=False)


def test_passes_of_other_blocks_and_modes_go_on() -> None:
    """Of another block, of this one in prediction, and of none; and MXNet's own errors stay."""
    block, other = made(True, {}), made(False, {})
    pending = recorded(block, inputs(mx.nd.array))
    recorded(other, inputs(mx.nd.array)).backward(train_mode=False)
    assert gradients(other)
    with autograd.record(train_mode=False):
        predicted = block(inputs(mx.nd.array)).sum()
    predicted.backward(train_mode=False)
    with pytest.raises(mx.MXNetError, match="not in a computational graph"):
        predicted.backward(train_mode=False)
    with pytest.raises(UnsupportedError, match=REFUSED):
        pending.backward(train_mode=False)


def test_a_pass_that_needs_no_gradient_is_not_recorded() -> None:
    losses = []
    for on in (False, True):
        block = made(on, {})
        block.collect_params().setattr("grad_req", "null")
        losses.append(recorded(block, inputs(mx.nd.array)).asnumpy())
    assert recomputed(block)
    assert losses[0] == losses[1]
