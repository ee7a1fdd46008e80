"""MXNet's own CachedOp, and one that leaves pointwise operators as they are on GPUs."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from echo import native

StockCachedOp = mx.nd.CachedOp  # before anybody puts another in its place


class UnfusedCachedOp(StockCachedOp):  # type: ignore[misc, valid-type]
    """A CachedOp of a planned graph: MXNet decides in a call, the first on a device, whether to fuse its operators."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As ``CachedOp.__call__``."""
        with native.unfused():
            return super().__call__(*args, **kwargs)
