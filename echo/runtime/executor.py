"""An executor whose plan recomputes Dropout: its masks exist after a training forward pass alone."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from echo.errors import UnsupportedError


class GuardedExecutor(mx.executor.Executor):  # type: ignore[misc]
    """Refuses a backward pass behind an inference forward pass: recomputed Dropout would multiply by an old mask."""

    _trained_last = False

    def forward(self, is_train: bool = False, **kwargs: Any) -> Any:
        """As ``Executor.forward``."""
        self._trained_last = bool(is_train)
        return super().forward(is_train, **kwargs)

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """As ``Executor.backward``.

        Raises:
            UnsupportedError: the last forward pass was not a training one.
        """
        if not self._trained_last or not is_train:
            raise UnsupportedError(
                "backward() after forward(is_train=False) on a plan that recomputes Dropout from its mask: "
                "call forward(is_train=True), or optimize with keep='Dropout'"
            )
        super().backward(out_grads, is_train)

    def reshape(self, *args: Any, **kwargs: Any) -> mx.executor.Executor:
        """As ``Executor.reshape``; the new executor has the same plan, and the same guard."""
        return guard(super().reshape(*args, **kwargs))


def guard(executor: mx.executor.Executor) -> mx.executor.Executor:
    """Turns a bound executor into a `GuardedExecutor`."""
    executor.__class__ = GuardedExecutor
    return executor
