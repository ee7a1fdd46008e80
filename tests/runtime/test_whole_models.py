"""Fused operators in whole models: gradients of the first step are as close to the truth as those of MXNet."""

from __future__ import annotations

from typing import Any, Mapping

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.passes.patterns import MASKS
from tests.support.fused_models import Example
from tests.support.whole_models import MODELS, first_values

BOUND = 2e-5  # of the largest element of a gradient
NORMED = [name for name in MODELS if name.startswith("ln")]
Gradients = Mapping[str, Any]


def gradients(symbol: mx.sym.Symbol, example: Example, values: Mapping[str, Any], dtype: str = "float32") -> Gradients:
    """The gradients of one training step."""
    given = {name: mx.nd.array(value.astype(dtype), dtype=dtype) for name, value in values.items()}
    into = {name: mx.nd.zeros(array.shape, dtype=dtype)
            for name, array in given.items() if name not in example.integers}  # fmt: skip
    executor = symbol.bind(mx.cpu(), given, into)
    executor.forward(is_train=True)
    executor.backward()
    return {name: array.asnumpy().astype(np.float64) for name, array in executor.grad_dict.items() if array is not None}


def largest(found: Gradients, exact: Gradients, name: str) -> float:
    return float(np.abs(found[name] - exact[name]).max())


def too_far(found: Gradients, stock: Gradients, exact: Gradients) -> list[str]:
    """The gradients that are not within the bound of MXNet's own.

    Where MXNet's float32 is itself that far from float64, as where all of a gradient cancels out but rounding, it
    counts how far these are from float64: no more than three times as far.
    """
    wrong = []
    for name, truth in exact.items():
        own = largest(stock, exact, name)
        near = largest(found, stock, name) <= BOUND * np.abs(truth).max()
        if not near and largest(found, exact, name) > 3 * own:
            wrong.append(name)
    return wrong


@pytest.mark.slow  # all of them take a minute and more
@pytest.mark.usefixtures("free_workspaces")
@pytest.mark.parametrize("name", [name for name in MODELS if name not in NORMED])
def test_gradients_are_as_close_as_those_of_mxnet(name: str) -> None:
    example = MODELS[name]()
    values = first_values(example)
    optimized = echo.optimize(example.symbol, fuse="memory")
    found = gradients(optimized, example, values)
    assert optimized.plans[-1].fused
    stock = gradients(example.symbol, example, values)
    exact = gradients(example.symbol, example, values, "float64")
    assert too_far(found, stock, exact) == []
    of_size = [key for key, truth in exact.items() if largest(stock, exact, key) < BOUND / 2 * np.abs(truth).max()]
    assert len(of_size) > 0.8 * len(exact), "the bound means something for nearly all of them"


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_a_wrong_gradient_would_be_seen(name: str) -> None:
    """By a ten thousandth, in one element of one gradient."""
    example = MODELS[name]()
    values = first_values(example)
    stock = gradients(example.symbol, example, values)
    exact = gradients(example.symbol, example, values, "float64")
    wrong = {key: array.copy() for key, array in stock.items()}
    where = np.unravel_index(np.abs(wrong["scores_weight"]).argmax(), wrong["scores_weight"].shape)
    wrong["scores_weight"][where] *= 1 + 1e-4
    assert too_far(stock, stock, exact) == []
    assert too_far(wrong, stock, exact) == ["scores_weight"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lnlstm", "lngru"])
def test_model_that_amplifies_rounding_is_not_fused(name: str) -> None:
    example = MODELS[name]()
    values = first_values(example)
    optimized = echo.optimize(example.symbol)
    found, stock = gradients(optimized, example, values), gradients(example.symbol, example, values)
    plan = optimized.plans[-1]
    assert {pattern for pattern, _ in plan.fused} <= MASKS
    assert plan.after.planned < plan.before.planned
    (note,) = (note for note in plan.remarks if "fuse='memory' fuses" in note)
    assert "normalizes a product of the state of a recurrent cell" in note
    assert all(np.array_equal(found[key], stock[key]) for key in stock)


@pytest.mark.slow  # as above
@pytest.mark.parametrize("name", NORMED)
def test_inexact_fusion_stays_near_the_true_gradients(name: str) -> None:
    """Within twenty times what half of the last bit of each weight makes of the true gradients.

    The most seen: eleven times, with AVX2; below ten with AVX-512.
    """
    example = MODELS[name]()
    values = first_values(example)
    optimized = echo.optimize(example.symbol, fuse="memory")
    found = gradients(optimized, example, values)
    assert optimized.plans[-1].fused
    draw = np.random.default_rng(1)
    moved = {key: value if key in example.integers else value * (1 + 6e-8 * draw.choice([-1, 1], value.shape))
             for key, value in values.items()}  # fmt: skip
    exact = gradients(example.symbol, example, values, "float64")
    near = gradients(example.symbol, example, moved, "float64")
    for key, truth in exact.items():
        assert largest(found, exact, key) <= max(20 * largest(near, exact, key), BOUND * np.abs(truth).max()), key
