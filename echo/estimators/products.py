"""Gradients of products: which they are, and what those take that were not measured.

Convolutions, fully connected layers, attention and recurrent layers are products here. Their gradients are most of a
training step, and dear to measure. So only some are, and what others take follows their own product.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Sequence

from echo.estimators.signatures import forward_node
from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph

# The gradients of a product are two products: 2.2 times the forward time over the convolutions of ResNet-50, 2.4 and
# 2.5 over the fully connected layers of NMT and LM. Measured ones are from 1.8 (attention) to 3.4 (a convolution of
# 11 x 21).
GRADIENT_OF_PRODUCT = 2.3


def product_of(training: TrainingGraph, number: int) -> int | None:
    """The forward node of the gradient of a product, None for other nodes."""
    node = training.nodes[number]
    forward = forward_node(training, node)
    return node.control_deps[0] if forward is not None and spec(forward.op).flops is not None else None


def parts(training: TrainingGraph) -> dict[int, int]:
    """For each gradient of a product: how many nodes share its seconds (`echo.ir.split_gradients`)."""
    products = {number: product_of(training, number) for number, _ in training.operators()}
    count = Counter(products.values())
    return {number: count[product] for number, product in products.items() if product is not None}


def gradient_of(seconds: float, size: float, known: Sequence[tuple[float, float]]) -> float:
    """Seconds of the gradient of a product that takes ``seconds``.

    ``known`` are sizes of gradients alike with the multiples of their products' seconds that they take; of these the
    one of the nearest size counts.
    """
    nearest = min(known, key=lambda pair: abs(math.log(pair[0] / size)), default=(size, GRADIENT_OF_PRODUCT))
    return nearest[1] * seconds
