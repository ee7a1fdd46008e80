"""MXNet's own CachedOp, and one that leaves pointwise operators as they are on GPUs."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from echo import native

StockCachedOp = mx.nd.CachedOp  # before anybody puts another in its place


def _unfused(kind: Any) -> Any:
    """A class of CachedOps of planned graphs: MXNet decides in a call, the first on a device, whether to fuse."""

    class UnfusedCachedOp(kind):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """As ``CachedOp.__call__``."""
            with native.unfused():
                return super().__call__(*args, **kwargs)

    return UnfusedCachedOp


# Only CUDA builds of MXNet fuse. Another copy of echo may have put a function in the place of the class: this copy then
# refuses to plan.
_IS_NEEDED = isinstance(StockCachedOp, type) and mx.runtime.Features().is_enabled("CUDA")
UnfusedCachedOp = _unfused(StockCachedOp) if _IS_NEEDED else StockCachedOp
