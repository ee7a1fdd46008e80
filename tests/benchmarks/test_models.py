"""The models of the acceptance table: small ones train a step, large ones plan what was written down."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

# The benchmarks are not part of the installed package.
sys.path.append(str(Path(__file__).resolve().parents[2]))

import mxnet as mx

from benchmarks.models import MODELS, SMALL, Model, planned_mb, random_values


def train_step(model: Model) -> mx.executor.Executor:
    """An executor of `model` after one forward and backward run."""
    executor = model.symbol.simple_bind(mx.cpu(), grad_req=model.grad_req(), **model.shapes)
    for name, values in random_values(model).items():
        executor.arg_dict[name][:] = values
    executor.forward(is_train=True)
    executor.backward()
    mx.nd.waitall()
    return executor


def test_registries_name_the_same_models() -> None:
    assert list(SMALL) == list(MODELS)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", SMALL)
def test_small_model_trains_a_step(name: str) -> None:
    model = SMALL[name]()
    executor = train_step(model)
    assert np.isfinite(executor.outputs[0].asnumpy()).all()
    trained = {key: gradient.asnumpy() for key, gradient in executor.grad_dict.items() if gradient is not None}
    assert trained.keys() == set(model.symbol.list_arguments()) - model.shapes.keys()
    assert all(np.isfinite(gradient).all() for gradient in trained.values())
    assert sum(gradient.any() for gradient in trained.values()) > len(trained) / 2


@pytest.mark.parametrize("name", SMALL)
def test_small_model_holds_the_operators_of_the_large_one(name: str) -> None:
    def operators(model: Model) -> set[str]:
        return {node["op"] for node in json.loads(model.symbol.tojson())["nodes"]}

    # The zoo's last pooling fits one image size only: its place is taken by the same operator.
    assert operators(SMALL[name]()) == operators(MODELS[name]())


@pytest.mark.parametrize("name", SMALL)
def test_equal_builds_give_equal_symbols(name: str) -> None:
    first, second = SMALL[name](), SMALL[name]()
    assert first.symbol.tojson() == second.symbol.tojson()
    assert first.name == name


@pytest.mark.parametrize("name", MODELS)
def test_stock_mxnet_plans_what_was_written_down(name: str) -> None:
    model = MODELS[name]()
    assert planned_mb(model) == model.stock_mb


def test_same_seed_gives_the_same_values() -> None:
    model = SMALL["lm"]()
    first, again, other = (random_values(model, seed) for seed in (0, 0, 1))
    for name in model.symbol.list_arguments():
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])
    assert 0 <= first["data"].min() <= first["data"].max() < model.limits["data"]
