"""Recomputation is invisible: however an optimized symbol is bound, executors give the bits of the user's own.

Fused operators, which change last bits, are off here: `tests/runtime/test_fused.py` is about them.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.runtime.bind import OptimizedSymbol
from tests.support.bound_network import BATCH, GRADIENTS, LIMITS, LOW_BOUND, SHAPES, network, was_planned
from tests.support.training import Record, arrays, assert_same, bind, random_arrays, train

Symbol = mx.sym.Symbol
pytestmark = pytest.mark.usefixtures("cheap_planning")


def test_bind_with_dictionaries(optimized: OptimizedSymbol, values: dict[str, Any], expected: Record) -> None:
    assert_same(train(bind(optimized, values, GRADIENTS)), expected)
    assert was_planned(optimized)


def listed(symbol: Symbol, values: dict[str, Any]) -> mx.executor.Executor:
    args = [mx.nd.array(values[name]) for name in symbol.list_arguments()]
    gradients = [None if name in SHAPES else mx.nd.ones(values[name].shape) for name in symbol.list_arguments()]
    _, _, aux_shapes = symbol.infer_shape(**SHAPES)
    aux = [mx.nd.ones(shape) for shape in aux_shapes]
    return symbol.bind(mx.cpu(), args, gradients, list(GRADIENTS.values()), aux)


def test_bind_with_lists(optimized: OptimizedSymbol, values: dict[str, Any], expected: Record) -> None:
    assert_same(train(listed(optimized, values)), expected)
    assert was_planned(optimized)


def test_missing_gradient_arrays_are_not_trained(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    # grad_req says "write" for all, but only some gradients have arrays
    def bound(symbol: Symbol) -> mx.executor.Executor:
        args = {name: mx.nd.array(value) for name, value in values.items()}
        gradients = {name: mx.nd.ones(values[name].shape) for name in ("conv0_weight", "scores_bias")}
        _, _, aux_shapes = symbol.infer_shape(**SHAPES)
        return symbol.bind(mx.cpu(), args, gradients, "write", [mx.nd.ones(shape) for shape in aux_shapes])

    assert_same(train(bound(optimized)), train(bound(network())))
    assert was_planned(optimized)


def simply_bound(symbol: Symbol, values: dict[str, Any], **more: Any) -> mx.executor.Executor:
    shapes = {name: values[name].shape for name in SHAPES}
    executor = symbol.simple_bind(mx.cpu(), grad_req=GRADIENTS, **shapes, **more)
    for name, value in values.items():
        executor.arg_dict[name][:] = value
    for array in executor.aux_arrays:
        array[:] = 1
    return executor


def test_simple_bind(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    assert_same(train(simply_bound(optimized, values)), train(simply_bound(network(), values)))
    assert was_planned(optimized)


def test_simple_bind_with_types(values: dict[str, Any]) -> None:
    types = dict.fromkeys(network().list_arguments(), "float64")
    optimized = echo.optimize(network(), **LOW_BOUND)
    got, expected = (train(simply_bound(symbol, values, type_dict=types)) for symbol in (optimized, network()))
    assert expected["step 0: gradient conv0_weight"].dtype == np.float64
    assert was_planned(optimized)
    assert_same(got, expected)


def test_keyword_arguments_of_mxnet_are_accepted(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    executor = optimized.simple_bind(ctx=mx.cpu(), grad_req="write", **SHAPES)
    assert was_planned(optimized)
    again = optimized.bind(
        ctx=mx.cpu(), args=executor.arg_arrays, args_grad=executor.grad_arrays, aux_states=executor.aux_arrays
    )
    assert was_planned(optimized, 2)
    assert again.forward(is_train=True)[0].shape == (BATCH, 10)


def test_executor_is_the_users(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    executor, plain = bind(optimized, values, GRADIENTS), bind(network(), values, GRADIENTS)
    assert executor._symbol.tojson() == plain._symbol.tojson()
    assert type(executor._symbol) is Symbol
    for name in ("arg_dict", "grad_dict", "aux_dict", "output_dict"):
        assert list(getattr(executor, name)) == list(getattr(plain, name))
    assert isinstance(executor, mx.executor.Executor)


def test_several_forwards_before_a_backward(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    def run(symbol: Symbol) -> Record:
        executor = bind(symbol, values, GRADIENTS)
        mx.random.seed(0)
        for scale in (0.5, 2.0, -1.0):
            executor.forward(is_train=True, data=mx.nd.array(values["data"] * scale))
        executor.backward()
        return arrays(executor)

    assert_same(run(optimized), run(network()))


def test_inference_in_between(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    def run(symbol: Symbol) -> list[Record]:
        executor = bind(symbol, values, GRADIENTS)
        seen = []
        for step in range(3):
            seen.append(train(executor, steps=1))
            executor.forward(is_train=False, data=mx.nd.array(values["data"] * (step + 1)))
            seen.append(arrays(executor))
        return seen

    for got, expected in zip(run(optimized), run(network())):
        assert_same(got, expected)
    assert was_planned(optimized)


@pytest.mark.parametrize("batch", [BATCH // 2, BATCH, BATCH * 2])
def test_reshaped_executor_trains_to_stocks_bits(
    optimized: OptimizedSymbol, values: dict[str, Any], batch: int
) -> None:
    def run(symbol: Symbol) -> list[Record]:
        first = bind(symbol, values, GRADIENTS)
        before = train(first, steps=1)
        second = first.reshape(allow_up_sizing=True, data=(batch, 4, 10, 10), label=(batch,))
        generator = np.random.RandomState(1)
        second.arg_dict["data"][:] = generator.normal(0, 1, (batch, 4, 10, 10))
        second.arg_dict["label"][:] = generator.randint(0, 10, batch)
        after = train(second, steps=2)
        if batch <= BATCH:  # a larger executor takes new memory, and does not take over the old one's gradients
            return [before, after, train(first, steps=1)]
        return [before, after]

    for got, expected in zip(run(optimized), run(network())):
        assert_same(got, expected)


def test_shared_executors(optimized: OptimizedSymbol) -> None:
    """Two executors of different sizes on one memory pool, as buckets have them, used in turn."""

    def run(symbol: Symbol) -> list[Record]:
        large = symbol.simple_bind(mx.cpu(), grad_req=GRADIENTS, **SHAPES)
        halves = {name: (BATCH // 2, *shape[1:]) for name, shape in SHAPES.items()}
        small = symbol.simple_bind(
            mx.cpu(), grad_req=GRADIENTS, shared_exec=large, shared_buffer={},
            shared_arg_names=[name for name in GRADIENTS if name not in SHAPES], **halves,
        )  # fmt: skip
        for executor in (large, small):
            shapes = {name: array.shape for name, array in executor.arg_dict.items()}
            for name, value in random_arrays(symbol, {key: shapes[key] for key in SHAPES}, limits=LIMITS).items():
                executor.arg_dict[name][:] = value
        for array in large.aux_arrays:
            array[:] = 1
        return [train(executor, steps=1) for executor in (large, small, large, small, small, large)]

    for got, expected in zip(run(optimized), run(network())):
        assert_same(got, expected)
    assert was_planned(optimized, 2)


def test_monitor_sees_the_users_names(optimized: OptimizedSymbol, values: dict[str, Any], expected: Record) -> None:
    seen: dict[str, list[str]] = {}

    def run(symbol: Symbol, key: str) -> Record:
        executor = bind(symbol, values, GRADIENTS)
        executor.set_monitor_callback(lambda name, _: seen.setdefault(key, []).append(name.decode()), monitor_all=True)
        return train(executor)

    got, plain = run(optimized, "echo"), run(network(), "plain")
    assert_same(got, plain)
    assert_same(got, expected)
    shown = {name for name in seen["echo"] if "_echo" not in name}
    assert shown == set(seen["plain"])


def test_monitor_of_mxnet(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    def run(symbol: Symbol) -> list[tuple[int, str, str]]:
        # stand-ins for gradients that were not requested are undefined
        monitor = mx.mon.Monitor(1, pattern="(?!.*backward).*(output|weight)", sort=True)
        executor = bind(symbol, values, GRADIENTS)
        monitor.install(executor)
        monitor.tic()
        mx.random.seed(0)
        executor.forward(is_train=True)
        executor.backward()
        return [row for row in monitor.toc() if "_echo" not in row[1]]

    assert run(optimized) == run(network())
