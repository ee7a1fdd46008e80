"""Small graphs that compute the same, timed against each other: forward and backward, in turns, on one device.

Nothing here draws from MXNet's random stream.
"""

from __future__ import annotations

import time
from typing import Mapping

import mxnet as mx
import numpy as np

from echo.estimators.overhead import UnmeasurableError
from echo.frontend.symbols import symbol_of
from echo.graph import Graph
from echo.training_graph import TensorType

_LEAST_ROUNDS, _MOST_ROUNDS = 2, 9
_HOPELESS = 1.2  # times the best of the first round
_NOISE = 16411  # numbers, again and again: drawing all would take longer than the race


def race(
    graphs: Mapping[str, Graph], types: Mapping[str, TensorType], ctx: mx.Context, limit: float
) -> dict[str, float] | None:
    """The median seconds of a training step of each graph; all read the same arrays, of the types given by name.

    None where that takes longer than ``limit`` seconds. Those that fall back drop out, save the first.

    Raises:
        UnmeasurableError: MXNet does not run one of them.
    """
    start = time.perf_counter()
    seconds: dict[str, list[float]] = {name: [] for name in graphs}
    try:
        executors = _bound(graphs, types, ctx)
        heads = [mx.nd.ones(out.shape, ctx, out.dtype) for out in next(iter(executors.values())).outputs]
        for turn in range(1 + _MOST_ROUNDS):
            for name in list(executors):
                took = _step(executors[name], heads)
                if turn:  # the first makes MXNet's primitives
                    seconds[name].append(took)
                if turn <= _LEAST_ROUNDS and time.perf_counter() - start > limit:
                    return None
            another = (time.perf_counter() - start) / (turn + 1)
            if turn >= _LEAST_ROUNDS and time.perf_counter() - start + another > limit:
                break
            if turn == 1:
                best = min(times[0] for times in seconds.values())
                slow = [name for name in list(executors)[1:] if seconds[name][0] > _HOPELESS * best]
                for name in slow:
                    del executors[name]
    except mx.MXNetError as error:
        raise UnmeasurableError(f"MXNet does not run {list(graphs)}: {str(error).strip().splitlines()[-1]}") from error
    return {name: float(np.median(times)) for name, times in seconds.items()}


def _bound(
    graphs: Mapping[str, Graph], types: Mapping[str, TensorType], ctx: mx.Context
) -> dict[str, mx.executor.Executor]:
    noise = np.random.RandomState(0).uniform(-0.1, 0.1, _NOISE)
    given = {
        name: mx.nd.array(np.resize(noise.astype(kind.dtype), kind.shape), ctx, kind.dtype)
        for name, kind in types.items()
    }
    into = {name: mx.nd.zeros(array.shape, ctx, array.dtype) for name, array in given.items()}
    bind = mx.sym.Symbol.bind  # MXNet's own, not that of a subclass
    return {name: bind(symbol_of(graph), ctx, given, into) for name, graph in graphs.items()}


def _step(executor: mx.executor.Executor, heads: list[mx.nd.NDArray]) -> float:
    start = time.perf_counter()
    outputs = executor.forward(is_train=True)
    executor.backward(heads)
    for array in [*outputs, *executor.grad_arrays]:
        array.wait_to_read()
    return time.perf_counter() - start
