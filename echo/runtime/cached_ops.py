"""Which CachedOps of the process are planned: those of blocks that the user named, or with ``ECHO=1`` all of them."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator, Sequence

import mxnet as mx
from mxnet.symbol import Symbol

from echo.runtime.cached_op import PlannedCachedOp, StockCachedOp
from echo.runtime.on_error import Attempt
from echo.system.own_binds import are_own

_owner = threading.local()
_everywhere: Attempt | None = None


def cached_op(symbol: Symbol, flags: Sequence[tuple[str, Any]] = ()) -> Any:
    """What ``mxnet.ndarray.CachedOp`` is from the first plan on: MXNet's own where nobody wants one."""
    attempt = getattr(_owner, "attempt", None) or _everywhere
    if attempt is None or are_own():
        return StockCachedOp(symbol, flags)
    return attempt(lambda _: PlannedCachedOp(symbol, flags, attempt), lambda: StockCachedOp(symbol, flags))


def plan_everywhere(attempt: Attempt | None) -> None:
    """From now on every CachedOp is planned, or with None those alone that are made inside `planned_by`."""
    global _everywhere
    _everywhere = attempt
    if attempt is not None:
        mx.nd.CachedOp = cached_op
    elif mx.nd.CachedOp is cached_op:
        mx.nd.CachedOp = StockCachedOp  # `planned_by` puts it in again for blocks that are to be planned


@contextlib.contextmanager
def planned_by(attempt: Attempt) -> Iterator[None]:
    """CachedOps that this thread makes meanwhile are planned."""
    mx.nd.CachedOp = cached_op
    before, _owner.attempt = getattr(_owner, "attempt", None), attempt
    try:
        yield
    finally:
        _owner.attempt = before
