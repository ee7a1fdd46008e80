"""A few training steps on every road, without anything of echo's; prints a hash of all weights.

``--save FILE`` writes a network's symbol instead. ``check.sh`` runs it under versions of numpy and Python that mxnet
by itself does not know.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

if "--compat" in sys.argv:
    import echo.compat  # noqa: F401

import mxnet as mx
import numpy as np

STEPS = 3
DIGEST = hashlib.sha256()


def network() -> mx.sym.Symbol:
    """A small convolutional network with its loss."""
    hidden = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=8, name="conv")
    hidden = mx.sym.Activation(mx.sym.BatchNorm(hidden, name="norm"), act_type="relu")
    hidden = mx.sym.Dropout(mx.sym.tanh(hidden) * mx.sym.sigmoid(hidden), p=0.2)
    scores = mx.sym.FullyConnected(hidden, num_hidden=4, name="scores")
    return mx.sym.SoftmaxOutput(scores, name="softmax")


def module() -> dict[str, Any]:
    """Module with Adam on it."""
    numbers = np.random.RandomState(0)
    images, labels = numbers.rand(32, 3, 12, 12).astype("float32"), numbers.randint(0, 4, 32)
    trained = mx.mod.Module(network())
    trained.fit(mx.io.NDArrayIter(images, labels, 16), num_epoch=STEPS, optimizer="adam", initializer=mx.init.Xavier())
    mx.nd.waitall()
    weights, states = trained.get_params()
    return {**weights, **states}


def gluon(array: Any, loss: Any) -> dict[str, Any]:
    """A hybridized block with Trainer, on the arrays of ``mx.nd`` or ``mx.np``."""
    numbers = np.random.RandomState(0)
    data, label = array(numbers.rand(8, 6).astype("float32")), array(numbers.rand(8, 2).astype("float32"))
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(16, activation="tanh"), mx.gluon.nn.LayerNorm(), mx.gluon.nn.Dense(2))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for _ in range(STEPS):
        with mx.autograd.record():
            error = loss(net(data), label)
        error.backward()
        trainer.step(8)
    mx.nd.waitall()
    return {name: value.data() for name, value in net.collect_params().items()}


def digest(values: dict[str, Any]) -> None:
    """Adds these arrays to the hash; a network that learned nothing would say nothing."""
    for name in sorted(values):
        value = values[name].asnumpy()
        assert np.isfinite(value).all(), name
        DIGEST.update(value.tobytes())


def main() -> None:
    """Module, Gluon with mx.nd, Gluon with mx.np."""
    mx.random.seed(1)
    np.random.seed(1)
    digest(module())
    digest(gluon(mx.nd.array, mx.gluon.loss.L2Loss()))
    mx.npx.set_np()
    digest(gluon(mx.np.array, mx.gluon.loss.L2Loss()))
    assert (mx.np.array([1, 2]) > 1).dtype == np.bool_
    assert mx.np.zeros((2,), dtype=bool).asnumpy().dtype == np.bool_
    mx.npx.reset_np()
    print(DIGEST.hexdigest())


if __name__ == "__main__":
    if "--save" in sys.argv:
        network().save(sys.argv[-1])
    else:
        main()
