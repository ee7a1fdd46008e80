"""Small graphs that compute the same, timed against each other: forward and backward, in turns, on one device."""

from __future__ import annotations

from functools import partial
from typing import Any, Mapping, Sequence

from echo.meter.batch import now, sample, work_since
from echo.meter.capi import Executor, Library

_LEAST_ROUNDS, _MOST_ROUNDS = 2, 9
_HOPELESS = 1.2  # times the best of the first round


def race(
    library: Library, graphs: Mapping[str, Any], types: Mapping[str, Sequence[Any]], limit: float
) -> dict[str, float] | None:
    """The fewest seconds of a training step of each graph; all read the same arrays, of these shapes and flags.

    None where that takes longer than ``limit`` seconds of work. Graphs that fall behind drop out, save the first.

    Raises:
        MxnetError: MXNet does not run one of them.
    """
    start = now()
    seconds: dict[str, list[float]] = {name: [] for name in graphs}
    arrays = {name: library.array(shape, flag, 0, -0.1, 0.1) for name, (shape, flag) in types.items()}
    gradients = {name: library.constant(shape, flag, 0) for name, (shape, flag) in types.items()}
    executors = {name: Executor(library, graph, arrays, gradients) for name, graph in graphs.items()}
    heads = [output.like(1) for output in next(iter(executors.values())).outputs]
    for turn in range(1 + _MOST_ROUNDS):
        for name in list(executors):
            if turn:
                seconds[name].append(sample(partial(executors[name].step, heads), library.device).seconds)
            else:  # which makes MXNet's primitives
                executors[name].step(heads)
            if turn <= _LEAST_ROUNDS and work_since(start, library.device) > limit:
                return None
        another = work_since(start, library.device) / (turn + 1)
        if turn >= _LEAST_ROUNDS and work_since(start, library.device) + another > limit:
            break
        if turn == 1:
            best = min(times[0] for times in seconds.values())
            for name in [name for name in list(executors)[1:] if seconds[name][0] > _HOPELESS * best]:
                del executors[name]
    return {name: min(times) for name, times in seconds.items()}
