"""Seconds of single operators and of small graphs on the user's device, measured in a process of its own."""

from __future__ import annotations

import math
import time
from typing import Any, Mapping

import mxnet as mx

from echo.estimators.cost_model import LateError, Measured, UnmeasurableError
from echo.frontend.measurement_process import ask
from echo.frontend.microbenchmark import GraphFacts, excess, microbenchmark_of, parameter_bytes, product_or_self, refuse
from echo.ir.graph import Graph
from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType, TrainingNode
from echo.meter.capi import Microbenchmark
from echo.meter.timer import CACHED_BYTES, STREAMED_BYTES

# By twice the steps, each error would come back 24 times in a layer of 50 steps of which 2 are timed; by four times, 8.
_LARGER_PART = 4
_NEARER_PART = 3  # times larger: reading the parameters then takes a twentieth of the time


class TimerClient:
    """Measures nodes on one device (`echo.meter.timer`)."""

    def __init__(self, ctx: mx.Context) -> None:
        self._ctx = ctx
        self._latest_facts: tuple[TrainingGraph, GraphFacts] | None = None
        self._streaming: float | None = None  # seconds a byte (`echo.meter.timer.OperatorTimer.streaming`)
        self._spent = 0.0
        self._multiples: dict[str, float] = {}  # by microbenchmark (`_beside_reading`)

    def __call__(self, training: TrainingGraph, number: int) -> Measured:
        """Seconds of one run of node ``number``.

        Raises:
            UnmeasurableError: the node draws random numbers, runs foreign code, or MXNet cannot run it alone.
            UnavailableError: nothing can be measured.
        """
        node = training.nodes[number]
        refuse(training, node)
        self._spent, start = 0.0, time.thread_time()
        try:
            seconds, disturbed = self._measure(training, number, excess(training, number))
        except (mx.MXNetError, UnmeasurableError) as error:
            reason = str(error).strip().splitlines()[-1]
            kind = LateError if isinstance(error, LateError) else UnmeasurableError
            raise kind(f"{node.op} cannot be measured on its own: {reason}") from error
        return Measured(seconds, self._spent + time.thread_time() - start, disturbed)

    def _facts(self, training: TrainingGraph) -> GraphFacts:
        if self._latest_facts is None or self._latest_facts[0] is not training:
            self._latest_facts = training, GraphFacts.of(training)
        return self._latest_facts[1]

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        reply = ask(self._ctx, request)
        self._spent += reply["spent"]
        return reply

    def _measure(self, training: TrainingGraph, number: int, too_large: float) -> tuple[float, bool]:
        reply, microbenchmark, scale = self._part(training, number, too_large)
        if "too_long" in reply:
            too_large *= _seconds(reply, "too_long")
            reply, microbenchmark, scale = self._part(training, number, too_large, _seconds(reply, "once"))
        seconds, disturbed = _seconds(reply, "seconds"), reply.get("disturbed") is True
        node = training.nodes[number]
        product = product_or_self(training, number)
        if scale > 2 and spec(training.nodes[product].op).cost.packs_parameters:
            return self._beside_packing(training, number, too_large / _LARGER_PART, seconds, scale), disturbed
        if scale > 2 and microbenchmark.heavy and parameter_bytes(training, product) > CACHED_BYTES:
            return self._beside_reading(training, number, too_large, seconds, scale), disturbed
        is_light = microbenchmark.hot and not microbenchmark.heavy
        from_memory = is_light and scale > 1 and (node.random or not _works_in_place(node))
        beyond = self._beyond_caches(microbenchmark.bytes * scale) if from_memory else 0.0
        return seconds * scale + beyond, disturbed

    def _part(
        self, training: TrainingGraph, number: int, too_large: float, once: float | None = None
    ) -> tuple[Mapping[str, Any], Microbenchmark, float]:
        """The answer about a part of a node, its microbenchmark, and how many times smaller than the node it is."""
        microbenchmark, scale = microbenchmark_of(training, number, too_large, self._facts(training))
        return self._ask({"microbenchmark": microbenchmark._asdict(), "once": once}), microbenchmark, scale

    def _beside_packing(
        self, training: TrainingGraph, number: int, too_large: float, seconds: float, scale: float
    ) -> float:
        """Seconds of a node of which a part, ``scale`` times smaller, took ``seconds``, from those of a larger part.

        Each call packs the parameters first. An LSTM layer of 35 steps took 73 ms where 4 steps took 11.2 (98 in
        proportion) and 8 took 19.7 (77 by both; 650 units, batch 32, one thread).
        """
        reply, _, less = self._part(training, number, too_large)
        larger = _seconds(reply, "seconds")
        growth = max(larger - seconds, 0.0) / max(scale / less - 1, 1e-9)
        return min(max(seconds + growth * (scale - 1), larger), seconds * scale)

    def _beside_reading(
        self, training: TrainingGraph, number: int, too_large: float, seconds: float, scale: float
    ) -> float:
        """The same where caches do not hold the parameters of a product, for it and for its gradient.

        A product of 4096 x 768 x 30522 took 1.48 s, and 133 rows 70 ms: 2.1 s in proportion. Its gradient takes as much
        less than its part suggests, 3.1 s and not 4.2.
        """
        product = product_or_self(training, number)
        microbenchmark, _ = microbenchmark_of(training, product, too_large, self._facts(training))
        key = repr(microbenchmark)  # layers that are equal have equal ones
        if key not in self._multiples:
            if product != number:
                reply, _, scale_of_product = self._part(training, product, too_large)
                suggested = _seconds(reply, "seconds") * scale_of_product
            else:
                suggested = seconds * scale
            reply, _, less = self._part(training, product, too_large / _NEARER_PART)
            self._multiples[key] = min(_seconds(reply, "seconds") * less / suggested, 1.0)
        return seconds * scale * self._multiples[key]

    def _beyond_caches(self, moved: float) -> float:
        """Returns the seconds that a light operator on ``moved`` bytes takes beyond those of its parts in the caches.

        In the profiles of ResNet-50 v1 and DenseNet-121 clones of sums, BatchNorm and Concat took 1.3 to 1.7 times what
        parts of them take, and within 9 % of that with this (benchmarks/results/step_time.json).
        """
        share = min((moved - CACHED_BYTES) / (STREAMED_BYTES - CACHED_BYTES), 1.0)
        if share <= 0 or self._ctx.device_type != "cpu":
            return 0.0
        if self._streaming is None:
            seconds_a_byte = self._ask({"streaming": True}).get("streaming")
            if not isinstance(seconds_a_byte, float) or not 0 <= seconds_a_byte < math.inf:
                raise UnmeasurableError(f"expected seconds a byte, got {seconds_a_byte!r}")
            self._streaming = seconds_a_byte
        return share * moved * self._streaming


def _works_in_place(node: TrainingNode) -> bool:
    """Whether a clone overwrites the array that it reads: then it moves half of what its microbenchmark does.

    Clones of activations took 0.8 to 0.9 times what their parts take, which are measured from one array to another.
    """
    return len(node.inputs) == 1 and bool(node.inplace)


def _seconds(reply: Mapping[str, Any], key: str) -> float:
    value = reply.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UnmeasurableError(f"expected seconds, got {value!r}")
    return float(value)


def race(
    graphs: Mapping[str, Graph], types: Mapping[str, TensorType], ctx: mx.Context, limit: float
) -> dict[str, float] | None:
    """The fewest seconds of a training step of each graph (`echo.meter.timer`); ``types`` are those of its variables.

    None where that takes longer than ``limit`` seconds.

    Raises:
        LateError: the process that measures gives no answer.
        UnmeasurableError: MXNet does not run one of them.
        UnavailableError: nothing can be measured.
    """
    request = {
        "graphs": {name: graph.to_json() for name, graph in graphs.items()},
        "types": {name: (tensor.shape, tensor.flag) for name, tensor in types.items()},
        "time": limit,
    }
    try:
        times = ask(ctx, request, limit).get("race")
    except LateError:
        raise
    except UnmeasurableError as error:
        raise UnmeasurableError(f"MXNet does not run {list(graphs)}: {error}") from error
    return None if times is None else {name: _seconds(times, name) for name in times}
