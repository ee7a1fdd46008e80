"""The bytes that are alive while operators run, counted by their storages: what a plan's peak is held against."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import fx
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from echo.torch.storages import nbytes


class PeakTracker(TorchDispatchMode):  # type: ignore[misc]  # torch is not there where types are checked
    """Counts the storages that operators make while this mode is on.

    ``live`` are the bytes alive now, ``peak`` the most of them at once. Memory that was there before is not counted,
    nor what an operator allocates and frees inside itself. Not thread-safe.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def ignore(self, values: Sequence[Any]) -> None:
        """Leaves out these tensors, whatever views of them operators return; those that are counted already stay."""
        for value in values:
            if isinstance(value, torch.Tensor):
                self._add(value, 0)

    def _add(self, tensor: torch.Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known and self._known[key]() is not None:
            return
        self.live += size
        self.peak = max(self.peak, self.live)

        def freed(_: Any) -> None:
            self.live -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, freed)

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in _pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._add(value, nbytes(value))
        return result


def tracking(tracker: PeakTracker) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A compiler for `echo.torch.backend` that runs graphs operator by operator under a tracker.

    Inputs of a graph that no other tracked graph made are not counted.
    """
    from torch._dynamo.backends.debugging import boxed_nop

    def compiler(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        run = boxed_nop(module, inputs)

        def call(args: list[Any]) -> Any:
            tracker.ignore(args)
            with tracker:
                return run(args)

        call._boxed_call = True  # type: ignore[attr-defined]  # torch hands over the list, and frees what is in it
        return call

    return compiler
