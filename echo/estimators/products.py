"""Gradients of products: which they are, and what those take that were not measured.

Convolutions, fully connected layers, attention and recurrent layers are products here. Their gradients are most of a
training step, and dear to measure. So only some are, and what others take follows their own product.
"""

from __future__ import annotations

import math
from typing import Sequence

from echo.estimators.signatures import forward_node
from echo.ir.ops import spec
from echo.ir.training_graph import GRADIENT_SUM, TrainingGraph

# The gradients of a product are two products: 2.2 times the forward time over the convolutions of ResNet-50, 2.4 and
# 2.5 over the fully connected layers of NMT and LM. Measured ones are from 1.8 (attention) to 3.4 (a convolution of
# 11 x 21).
GRADIENT_OF_PRODUCT = 2.3


def product_of(training: TrainingGraph, number: int) -> int | None:
    """The forward node of the gradient of a product, None for other nodes."""
    node = training.nodes[number]
    forward = forward_node(training, node)
    return node.control_deps[0] if forward is not None and spec(forward.op).flops is not None else None


def read_outputs(training: TrainingGraph) -> dict[int, tuple[int, ...]]:
    """For each gradient of a product: the numbers of the outputs that are read, all where none is.

    MXNet computes no others: of the first layer no gradient of the data, in one of the nodes of a gradient that is
    split (`echo.ir.gradient_rules`) none of the weight.
    """
    read = {entry[:2] for node in training.nodes for entry in node.inputs}
    read.update(entry[:2] for entry in training.outputs)
    every = {
        number: range(len(node.outputs))
        for number, node in training.operators()
        if product_of(training, number) is not None
    }
    return {number: tuple(i for i in all_ if (number, i) in read) or tuple(all_) for number, all_ in every.items()}


def is_added_apart(training: TrainingGraph, number: int) -> bool:
    """Whether a node is the sum of a weight's gradients, which oneDNN computes into another array and then adds up.

    MXNet has the gradient's own operator add it up: for a weight of 2048 x 512, it takes 0.6 ms longer then, as long as
    a sum of two arrays does. Of other operators, that takes no time.
    """
    node = training.nodes[number]
    if node.op != GRADIENT_SUM:
        return False
    added = node.inputs[1]
    product = product_of(training, added.node)
    return product is not None and added.index == 1 and spec(training.nodes[product].op).adds_apart


def share_of(op: str, read: Sequence[int]) -> float:
    """The part of the gradients of product ``op`` that a node computes of which these outputs are read.

    Where there are parameters, the gradients of data and weight, the first two outputs, are half of the work each.
    """
    return max(1, sum(output < 2 for output in read)) / 2 if spec(op).has_parameters else 1.0


def gradient_of(seconds: float, size: float, known: Sequence[tuple[float, float]], share: float = 1.0) -> float:
    """Seconds of the gradient of a product that takes ``seconds``.

    ``known`` are sizes of gradients alike with the multiples of their products' seconds that they take; of these the
    one of the nearest size counts. Where there are none, ``share`` is the part of the gradients that it computes.
    """
    nearest = min(known, key=lambda pair: abs(math.log(pair[0] / size)), default=(size, share * GRADIENT_OF_PRODUCT))
    return nearest[1] * seconds
