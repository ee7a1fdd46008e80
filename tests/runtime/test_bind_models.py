"""Models of the benchmarks, with maps recomputed: the bits of the user's own symbol.

Fused operators, which change last bits, are off here: `tests/runtime/test_fused.py` is about them.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

import echo
from benchmarks.models import SMALL, Model, random_values
from echo.frontend.framework import MxnetFramework
from tests.support.bound_network import LIMITS, LOW_BOUND, SHAPES, network
from tests.support.fixtures_isolation import MEASURE_FUNCTION
from tests.support.training import Record, assert_alive, assert_same, bind, random_arrays, train

pytestmark = pytest.mark.usefixtures("cheap_planning")


@functools.lru_cache(maxsize=None)
def small(name: str) -> tuple[Model, dict[str, Any]]:
    model = SMALL[name]()
    return model, random_values(model)


def requested(model: Model, kind: str) -> dict[str, str]:
    """For what is trained ``write`` or ``add``; ``null`` leaves every third layer out; ``mixed`` has all three.

    Stock MXNet reads memory that it never wrote where the bias of a shared FullyConnected is trained and its weight is
    not, so whole layers get the same word.
    """
    wanted = model.grad_req()
    trained = [name for name, word in wanted.items() if word == "write"]
    layers = list(dict.fromkeys(name.rsplit("_", 1)[0] for name in trained))
    words = {
        "write": ("write",),
        "add": ("add",),
        "null": ("null", "write", "write"),
        "mixed": ("write", "add", "null"),
    }
    chosen = {layer: words[kind][index % len(words[kind])] for index, layer in enumerate(layers)}
    wanted.update({name: chosen[name.rsplit("_", 1)[0]] for name in trained})
    return wanted


@functools.lru_cache(maxsize=None)
def stock(name: str, kind: str) -> Record:
    model, values = small(name)
    seen = train(bind(model.symbol, values, requested(model, kind)))
    assert_alive(seen)
    return seen


@pytest.mark.every(17)
@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("kind", ["write", "add", "null"])
@pytest.mark.parametrize("name", SMALL)
def test_models_without_a_bound_on_time(name: str, kind: str) -> None:
    model, values = small(name)
    symbol = echo.optimize(model.symbol, **LOW_BOUND)
    executor = bind(symbol, values, requested(model, kind))
    assert "_echo\n" in executor.debug_str()
    assert len(symbol.plans[-1].recomputed) > 20
    assert_same(train(executor), stock(name, kind))


@pytest.mark.every(9)
@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", SMALL)
def test_models_at_the_default(name: str) -> None:
    model, values = small(name)
    symbol = echo.optimize(model.symbol, fuse=False)
    got = train(bind(symbol, values, requested(model, "mixed")))
    assert symbol.plans[-1].after.planned <= symbol.plans[-1].before.planned
    assert_same(got, stock(name, "mixed"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nmt", "resnet50_v1"])
def test_models_with_full_search_and_measured_costs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # of cheap planning
    monkeypatch.setattr(MxnetFramework, "measure_function", MEASURE_FUNCTION)
    model, values = small(name)
    symbol = echo.optimize(model.symbol, max_overhead=0.25, fuse=False)
    got = train(bind(symbol, values, requested(model, "write")))
    (plan,) = symbol.plans
    assert 0 < plan.overhead <= 0.25
    assert plan.after.planned < plan.before.planned
    assert_same(got, stock(name, "write"))


@pytest.mark.every(5)
@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", SMALL)
def test_models_with_all_maps_recomputed(name: str) -> None:
    model, values = small(name)
    operators = {node["op"] for node in json.loads(model.symbol.tojson())["nodes"]}
    required = [
        "Activation",
        "elemwise_mul",
        "BatchNorm",
        "Pooling",
        "Concat",
        "SliceChannel",
        "broadcast_mul",
    ]
    if "Convolution" not in operators:  # where the layouts of oneDNN's are, Dropout is not recomputed
        required.append("Dropout")
    symbol = echo.optimize(model.symbol, recompute=[op for op in required if op in operators], fuse=False)
    got = train(bind(symbol, values, requested(model, "write")))
    assert {decision.op for decision in symbol.plans[-1].recomputed} >= {"Activation"}
    assert_same(got, stock(name, "write"))


@pytest.fixture
def values() -> dict[str, Any]:
    return random_arrays(network(), SHAPES, limits=LIMITS)
