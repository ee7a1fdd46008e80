"""Gluon blocks of the benchmarks: networks of the model zoo, and an LSTM with attention out of Gluon's own cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn, rnn
from mxnet.gluon.model_zoo import vision

LEARNING_RATE = 0.01


class AttentiveLSTM(gluon.HybridBlock):
    """Two `LSTMCell` layers over ``steps`` words; after each step, MLP attention over a memory of as many rows.

    Inputs: (batch, steps) word numbers and (batch, steps, hidden) memory. Output: (batch, steps, words) scores.
    """

    def __init__(self, steps: int, hidden: int, words: int) -> None:
        super().__init__()
        self._steps = steps
        with self.name_scope():
            self.embedding = nn.Embedding(words, hidden)
            self.cells = rnn.HybridSequentialRNNCell()
            for _ in range(2):
                self.cells.add(rnn.LSTMCell(hidden, input_size=hidden))
            self.query = nn.Dense(hidden, flatten=False, use_bias=False, in_units=hidden)
            self.key = nn.Dense(hidden, flatten=False, use_bias=False, in_units=hidden)
            self.score = nn.Dense(1, flatten=False, use_bias=False, in_units=hidden)
            self.out = nn.Dense(words, flatten=False, in_units=2 * hidden)

    def hybrid_forward(self, F: Any, words: Any, memory: Any) -> Any:
        """As every block."""
        outputs, _ = self.cells.unroll(self._steps, self.embedding(words), layout="NTC", merge_outputs=False)
        keys = self.key(memory)
        rows = []
        for output in outputs:
            mixed = F.tanh(F.broadcast_add(F.expand_dims(self.query(output), axis=1), keys))
            weights = F.softmax(self.score(mixed), axis=1)
            context = F.sum(F.broadcast_mul(weights, memory), axis=1)
            rows.append(F.concat(output, context, dim=1))
        return self.out(F.stack(*rows, axis=1))


@dataclass(frozen=True)
class Training:
    """A block with a loss, an optimizer and one batch, the same in every process."""

    net: gluon.HybridBlock
    inputs: tuple[mx.nd.NDArray, ...]
    labels: mx.nd.NDArray
    trainer: gluon.Trainer

    def step(self) -> float:
        """One training step; the mean loss."""
        loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
        with mx.autograd.record():
            loss = loss_of(self.net(*self.inputs), self.labels)
        loss.backward()
        self.trainer.step(self.labels.shape[0])
        mx.nd.waitall()
        return float(loss.mean().asscalar())


def _trained(net: gluon.HybridBlock, inputs: tuple[Any, ...], labels: Any, static: bool) -> Training:
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=static)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": LEARNING_RATE})
    return Training(net, tuple(map(mx.nd.array, inputs)), mx.nd.array(labels), trainer)


def images(name: str, batch: int, static: bool) -> Training:
    """A network of the model zoo on random images of 224 x 224."""
    generator = np.random.RandomState(0)
    inputs = (generator.rand(batch, 3, 224, 224),)
    return _trained(getattr(vision, name)(classes=10), inputs, generator.randint(0, 10, batch), static)


def sentences(steps: int, hidden: int, batch: int, words: int, static: bool) -> Training:
    """`AttentiveLSTM` on random words."""
    generator = np.random.RandomState(0)
    inputs = (generator.randint(0, words, (batch, steps)), generator.rand(batch, steps, hidden))
    labels = generator.randint(0, words, (batch, steps))
    return _trained(AttentiveLSTM(steps, hidden, words), inputs, labels, static)


TRAININGS: dict[str, Callable[[], Training]] = {
    "resnet50_v2 b16, static_alloc": partial(images, "resnet50_v2", 16, True),
    "densenet121 b16, static_alloc": partial(images, "densenet121", 16, True),
    "LSTMCell 2x512 b64 + attention, 50 steps, static_alloc": partial(sentences, 50, 512, 64, 1000, True),
    "resnet50_v2 b16": partial(images, "resnet50_v2", 16, False),
    "densenet121 b16": partial(images, "densenet121", 16, False),
    "LSTMCell 2x512 b64 + attention, 50 steps": partial(sentences, 50, 512, 64, 1000, False),
}
