"""Ways to write to an array, and ways that change nothing."""

from __future__ import annotations

from typing import Callable

import mxnet as mx

OPTIONS = {"fuse": False, "max_overhead": None, "strict": True}
Write = Callable[[mx.nd.NDArray], None]


def _update(array: mx.nd.NDArray) -> None:
    mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.1))(0, array.ones_like(), array)


def _in_place(array: mx.nd.NDArray) -> None:
    array *= 0.5


def _one_element(array: mx.nd.NDArray) -> None:
    array.reshape((-1,))[-1] += 1


WRITES: dict[str, Write] = {
    "of another array": lambda array: (array * 0.5).copyto(array),
    "of numbers": lambda array: array.__setitem__(slice(None), array.asnumpy() * 0.5),
    "in place": _in_place,
    "of one element": _one_element,
    "by an optimizer": _update,
    "to a view": lambda array: array[:1].__setitem__(slice(None), 3),
}
NO_CHANGES: dict[str, Write] = {
    "the same numbers": lambda array: array.__setitem__(slice(None), array.asnumpy()),
    "nothing added": lambda array: array.__iadd__(0),
    "to and fro": lambda array: (array.__iadd__(1), array.__isub__(1)),
}
