"""The state of MXNet's random numbers is read without drawing any, and put back."""

from __future__ import annotations

from typing import Callable

import mxnet as mx
import numpy as np
import pytest

from echo.verify.compare import random_state, random_state_blocker, restore_random_state

DRAWS: dict[str, Callable[[], mx.nd.NDArray]] = {
    "uniform": lambda: mx.nd.random.uniform(shape=33),
    "normal": lambda: mx.nd.random.normal(shape=(3, 5)),
    "dropout": lambda: mx.nd.Dropout(mx.nd.ones(3000), mode="always"),
    "randint": lambda: mx.nd.random.randint(0, 1000, 40),
    "shuffle": lambda: mx.nd.random.shuffle(mx.nd.arange(50)),
    "multinomial": lambda: mx.nd.random.multinomial(mx.nd.ones(20) / 20, shape=30),
    "gamma": lambda: mx.nd.random.gamma(2, 2, shape=9),
    "np": lambda: mx.np.random.normal(size=7).as_nd_ndarray(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_random_numbers_can_be_put_back(draw: Callable[[], mx.nd.NDArray]) -> None:
    assert random_state_blocker() == ""
    mx.random.seed(11)
    draw()
    state = random_state()
    first = [draw().asnumpy(), draw().asnumpy()]
    assert random_state() != state
    assert not np.array_equal(first[0], first[1])
    restore_random_state(state)
    assert random_state() == state
    assert all(np.array_equal(draw().asnumpy(), before) for before in first)


def test_asking_for_the_state_draws_nothing() -> None:
    mx.random.seed(3)
    expected = mx.nd.random.uniform(shape=4).asnumpy()
    mx.random.seed(3)
    random_state_blocker.cache_clear()
    random_state_blocker()
    random_state()
    assert (mx.nd.random.uniform(shape=4).asnumpy() == expected).all()
