"""Arrays written between forward and backward of a block: an error where the plan reads them again."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import echo
from echo.errors import ChangedInputError
from tests.support.training import assert_alive, assert_same
from tests.support.writes import OPTIONS, WRITES, Write

pytestmark = pytest.mark.usefixtures("cheap_planning")
FLAGS: dict[str, dict[str, bool]] = {
    "dynamic": {},
    "static alloc": {"static_alloc": True},
    "static": {"static_alloc": True, "static_shape": True},
}


@pytest.fixture(params=FLAGS.values(), ids=FLAGS)
def flags(request: pytest.FixtureRequest) -> dict[str, bool]:
    return request.param  # type: ignore[no-any-return]


class Net(nn.HybridSequential):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(prefix="net_", **kwargs)
        with self.name_scope():
            self.add(nn.HybridLambda(lambda F, x: F.sin(F.exp(x))))
            for _ in range(2):
                self.add(nn.Dense(24), nn.LayerNorm(), nn.Activation("tanh"), nn.Activation("sigmoid"))
            self.add(nn.Dense(5))


def made(on: bool, flags: dict[str, bool], seed: int = 3) -> Net:
    with mx.name.NameManager():
        mx.random.seed(seed)
        block = Net()
        block.initialize(mx.init.Xavier())
        block.hybridize(**flags)
        return echo.optimize(block, **OPTIONS) if on else block


def inputs(seed: int = 0) -> mx.nd.NDArray:
    return mx.nd.array(np.random.RandomState(seed).normal(0, 1, (8, 12)))


def gradients(block: Net) -> dict[str, Any]:
    mx.nd.waitall()
    return {f"gradient {name}": param.grad().asnumpy() for name, param in block.collect_params().items()}


def gamma(block: Net) -> mx.nd.NDArray:
    return next(param for name, param in block.collect_params().items() if name.endswith("layernorm0_gamma")).data()


def recorded(block: Net, data: mx.nd.NDArray) -> mx.nd.NDArray:
    with autograd.record():
        return (block(data) ** 2).sum()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_blocks_refuse_a_write_to_a_parameter(flags: dict[str, bool], write: Write) -> None:
    block = made(True, flags)
    loss = recorded(block, inputs())
    with autograd.pause():
        write(gamma(block))
    with pytest.raises(ChangedInputError, match=r"layernorm0_gamma' was written .* \(LayerNorm\)"):
        loss.backward()


def test_blocks_refuse_a_write_to_an_input(flags: dict[str, bool]) -> None:
    block, data = made(True, flags), inputs()
    loss = recorded(block, data)
    data[:] = inputs(1)
    with pytest.raises(ChangedInputError, match="'data' was written"):
        loss.backward()
    recorded(block, data).backward()


def test_set_data_is_a_write(flags: dict[str, bool]) -> None:
    block = made(True, flags)
    loss = recorded(block, inputs())
    for param in block.collect_params().values():
        param.set_data(param.data() * 0.5)
    with pytest.raises(ChangedInputError):
        autograd.backward([loss])


def run(on: bool, flags: dict[str, bool], scenario: Callable[[Net], None]) -> dict[str, Any]:
    block = made(on, flags)
    scenario(block)
    seen = gradients(block)
    assert_alive(seen)
    if on:
        assert any(plan.recomputed_nodes for plan in block._cached_op.plans.values())
    return seen


def _several(block: Net) -> None:
    """Each pass has its own record; a write after one's backward is a write before another's forward."""
    losses = [recorded(block, inputs(seed)) for seed in range(3)]
    autograd.backward(losses)
    trainer = gluon.Trainer(block.collect_params(), "sgd", {"learning_rate": 0.1})
    trainer.step(1)
    first, second = recorded(block, inputs(4)), recorded(block, inputs(5))
    first.backward()
    second.backward()


def _retained(block: Net) -> None:
    loss = recorded(block, inputs())
    loss.backward(retain_graph=True)
    loss.backward()


def _inference_between(block: Net) -> None:
    loss = recorded(block, inputs())
    block(inputs(1)).wait_to_read()
    with autograd.predict_mode():
        block(inputs(2)).wait_to_read()
    loss.backward()


def _dropped(block: Net) -> None:
    """Passes that never see a backward pass: their records go, and later writes concern no pass."""
    for seed in range(40):
        recorded(block, inputs(seed))
        gamma(block)[:] *= 0.99
    recorded(block, inputs()).backward()


def _accumulated(block: Net) -> None:
    for param in block.collect_params().values():
        param.grad_req = "add"
    for seed in range(3):
        recorded(block, inputs(seed)).backward()
    gluon.Trainer(block.collect_params(), "adam").step(8)
    block.collect_params().zero_grad()
    recorded(block, inputs(3)).backward()


def _buffer_refilled_after_backward(block: Net) -> None:
    buffer = inputs()
    for seed in range(4):
        buffer[:] = inputs(seed)
        recorded(block, buffer).backward()


@pytest.mark.parametrize(
    "scenario", [_several, _retained, _inference_between, _dropped, _accumulated, _buffer_refilled_after_backward]
)
def test_usual_training_loop_raises_no_error(flags: dict[str, bool], scenario: Callable[[Net], None]) -> None:
    assert_same(run(True, flags, scenario), run(False, flags, scenario))


def test_two_networks_that_train_in_turns(flags: dict[str, bool]) -> None:
    """As a GAN: the discriminator is updated while a pass of the generator waits for its gradient."""

    def trained(on: bool) -> dict[str, Any]:
        generator, critic = made(on, flags), made(on, flags, seed=4)
        trainers = [gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}) for net in (generator, critic)]
        pad = mx.nd.ones((8, 7))
        for seed in range(3):
            with autograd.record():
                fake = mx.nd.concat(generator(inputs(seed)), pad)
                loss = (critic(inputs(seed + 9)) ** 2).sum() - (critic(fake.detach()) ** 2).sum()
            loss.backward()
            trainers[1].step(8)
            with autograd.record():
                loss = (critic(fake) ** 2).sum()
            loss.backward()
            trainers[0].step(8)
        return {**gradients(generator), **{f"{name} critic": value for name, value in gradients(critic).items()}}

    assert_same(trained(True), trained(False))


def test_a_loss_of_two_networks_is_refused_by_the_pass_of_the_one_that_changed(flags: dict[str, bool]) -> None:
    first, second = made(True, flags), made(True, flags, seed=4)
    with autograd.record():
        loss = first(inputs()).sum() * second(inputs()).sum()
    gamma(second)[:] = 2
    weights = [param.data() for param in first.collect_params().values()]
    found = autograd.grad(loss, weights, retain_graph=True)  # not after the second network
    assert all(np.isfinite(gradient.asnumpy()).all() for gradient in found)
    with pytest.raises(ChangedInputError, match="gamma"):
        autograd.grad(loss, [gamma(second)], retain_graph=True)
    with pytest.raises(ChangedInputError, match="gamma"):
        loss.backward()
