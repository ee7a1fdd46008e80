"""Records a training from outside: the loss of each step, the gradients of the first, all weights.

Every way to train in MXNet (Module, Trainer, a key-value store) ends in `mxnet.optimizer.Updater`, and every loss of
Gluon in `backward`: both are wrapped, and nothing of the project is changed.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Sequence

import numpy as np

Arrays = Dict[str, Any]  # NumPy's or MXNet's


class Witness:
    """Copies what passes by. Names are the parameters' where the optimizer knows them, else their numbers."""

    def __init__(self) -> None:
        self.losses: list[Any] = []
        self.gradients: dict[str, Any] = {}
        self.weights: dict[str, Any] = {}

    def watch(self) -> None:
        """Wraps the functions of mxnet, which has to be imported by now."""
        import mxnet as mx

        call, backward, backward_of = mx.optimizer.Updater.__call__, mx.nd.NDArray.backward, mx.autograd.backward

        @functools.wraps(call)
        def watched_call(updater: Any, index: Any, gradient: Any, weight: Any) -> None:
            many = isinstance(index, (list, tuple))
            for one in zip(index, gradient, weight) if many else ((index, gradient, weight),):
                self._see(updater.optimizer, *one)
            call(updater, index, gradient, weight)

        @functools.wraps(backward)
        def watched_backward(head: Any, *arguments: Any, **options: Any) -> None:
            self.losses.append(head.asnumpy())
            backward(head, *arguments, **options)

        @functools.wraps(backward_of)
        def watched_backward_of(heads: Any, *arguments: Any, **options: Any) -> None:
            self.losses.extend(head.asnumpy() for head in (heads if isinstance(heads, (list, tuple)) else [heads]))
            backward_of(heads, *arguments, **options)

        mx.optimizer.Updater.__call__ = watched_call
        mx.nd.NDArray.backward = watched_backward
        mx.autograd.backward = watched_backward_of

    def _see(self, optimizer: Any, index: Any, gradient: Any, weight: Any) -> None:
        parameter = optimizer.param_dict.get(index)
        name = parameter.name if parameter is not None else str(optimizer.idx2name.get(index, index))
        if name not in self.gradients:
            self.gradients[name] = _copied(gradient)
        self.weights[name] = weight

    def arrays(self) -> dict[str, Any]:
        """All that was seen, weights as they are now."""
        found = {f"loss/{number}": loss for number, loss in enumerate(self.losses)}
        found.update((f"gradient/{name}", value) for name, value in self.gradients.items())
        found.update((f"weight/{name}", as_numpy(value)) for name, value in self.weights.items())
        return found


def as_numpy(value: Any) -> Any:
    """NumPy's array of MXNet's, and others as they are."""
    return _copied(value) if hasattr(value, "asnumpy") else np.asarray(value)


def _copied(value: Any) -> Any:
    import mxnet as mx

    try:
        return value.asnumpy()
    except mx.base.MXNetError:  # a view in one of oneDNN's own layouts, as gradients of 3-D convolutions are
        return value.copy().asnumpy()


def random_draws() -> dict[str, Any]:
    """The positions of the random streams of Python, NumPy and MXNet: two runs that drew alike go on alike."""
    import random

    import mxnet as mx

    mx.nd.waitall()
    return {
        "random/python": np.array([random.random() for _ in range(4)]),
        "random/numpy": np.random.random_sample(4),
        "random/mxnet": mx.nd.random.uniform(shape=(4,)).asnumpy(),
        "random/mxnet_shuffle": mx.nd.random.shuffle(mx.nd.arange(16)).asnumpy(),
    }


def seed(number: int = 1) -> None:
    """Every random stream from its start."""
    import random

    import mxnet as mx

    random.seed(number)
    np.random.seed(number)
    mx.random.seed(number)


def parameters(blocks: Sequence[Any]) -> Arrays:
    """All parameters of Gluon blocks, moving statistics included."""
    return {name: value.data() for block in blocks for name, value in block.collect_params().items()}
