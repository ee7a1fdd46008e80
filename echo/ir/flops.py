"""Floating-point operations of operators, from the shapes of their inputs and of their first output."""

from __future__ import annotations

import math
from typing import Sequence

from echo.ir.op_spec import Shape


def convolution(inputs: Sequence[Shape], output: Shape) -> float:
    """FLOPs of a convolution: each element of the output is a product with one filter."""
    weight = inputs[1]
    return 2.0 * math.prod(output) * math.prod(weight) / max(1, weight[0])


def deconvolution(inputs: Sequence[Shape], _: Shape) -> float:
    """FLOPs of a deconvolution: those of a convolution whose output is this input."""
    weight = inputs[1]
    return 2.0 * math.prod(inputs[0]) * math.prod(weight) / max(1, weight[0])


def dense(inputs: Sequence[Shape], output: Shape) -> float:
    """FLOPs of a fully connected layer: each element of the output is a product with one row of the weight."""
    return 2.0 * math.prod(output) * inputs[1][-1]


def scores(inputs: Sequence[Shape], _: Shape) -> float:
    """FLOPs of products of each row of the input with each row of the weight, which need not be outputs."""
    return 2.0 * math.prod(inputs[0]) * inputs[1][0]


def attention(inputs: Sequence[Shape], _: Shape) -> float:
    """FLOPs of attention: each query times all keys, and its weights times all values."""
    queries, keys, values = inputs[:3]
    return 2.0 * queries[1] * (math.prod(keys) + math.prod(values))


def recurrent_layer(inputs: Sequence[Shape], _: Shape) -> float:
    """FLOPs of a recurrent layer: in each step, the input and the state times their weights."""
    x, wi, wh = inputs[0], inputs[1], inputs[3]
    return 2.0 * (math.prod(wi) + math.prod(wh)) * math.prod(x) / x[-1]


def rnn(inputs: Sequence[Shape], _: Shape) -> float:
    """FLOPs of MXNet's RNN: in each step, a product with all weights."""
    return 2.0 * math.prod(inputs[1]) * math.prod(inputs[0]) / max(1, inputs[0][-1])


def product(inputs: Sequence[Shape], output: Shape) -> float:
    """(batch, m, k) times (batch, k, n): the product of the inputs over the output is batch * k * k."""
    first, second = inputs[:2]
    batch = first[0] if len(first) > 2 else 1
    inner = math.sqrt(math.prod(first) * math.prod(second) / max(1, math.prod(output) * batch))
    return 2.0 * math.prod(output) * inner
