"""Which CachedOps of the process are planned: those of blocks that the user named, or with ``ECHO=1`` all of them."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Sequence

import mxnet as mx
from mxnet.symbol import Symbol

from echo.runtime.cached_op import PlannedCachedOp
from echo.runtime.on_error import OnError
from echo.runtime.unfused import StockCachedOp
from echo.system.own_binds import are_own
from echo.system.per_thread import PerThread

_HERE: PerThread[OnError | None] = PerThread(None)
_everywhere: OnError | None = None  # the policy of transparent mode while it is on


def cached_op(symbol: Symbol, flags: Sequence[tuple[str, Any]] = ()) -> Any:
    """Takes the place of ``mxnet.ndarray.CachedOp``: makes a planned one, or MXNet's own where none is asked for."""
    on_error = _HERE.value or _everywhere
    if on_error is None or are_own():
        return StockCachedOp(symbol, flags)
    return on_error(lambda _: PlannedCachedOp(symbol, flags, on_error), lambda: StockCachedOp(symbol, flags))


def plan_everywhere(on_error: OnError | None) -> None:
    """From now on every CachedOp is planned, or with None those alone that are made inside `planned_by`."""
    global _everywhere
    _everywhere = on_error
    if on_error is not None:
        mx.nd.CachedOp = cached_op
    elif mx.nd.CachedOp is cached_op:
        mx.nd.CachedOp = StockCachedOp  # `planned_by` puts it in again for blocks that are to be planned


def planned_everywhere() -> OnError | None:
    """The policy with which every CachedOp, and every symbol that is bound, is planned; None where that is off."""
    return _everywhere


@contextlib.contextmanager
def planned_by(on_error: OnError) -> Iterator[None]:
    """CachedOps that this thread makes meanwhile are planned."""
    mx.nd.CachedOp = cached_op
    with _HERE.set_to(on_error):
        yield
