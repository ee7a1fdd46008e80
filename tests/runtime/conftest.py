"""Fixtures of binds: the network of `tests.support.bound_network`, with and without echo."""

from __future__ import annotations

from typing import Any

import pytest

import echo
from echo.runtime.bind import OptimizedSymbol
from tests.support.bound_network import GRADIENTS, LIMITS, LOW_BOUND, SHAPES, network
from tests.support.training import Record, bind, random_arrays, train


@pytest.fixture
def values() -> dict[str, Any]:
    """What the arguments of the network hold."""
    return random_arrays(network(), SHAPES, limits=LIMITS)


@pytest.fixture
def expected(values: dict[str, Any]) -> Record:
    """What a training step of the network gives without echo."""
    return train(bind(network(), values, GRADIENTS))


@pytest.fixture
def optimized() -> OptimizedSymbol:
    """The network, optimized without a bound on time."""
    return echo.optimize(network(), **LOW_BOUND)
