"""Which CachedOps of the process are planned: those of blocks that the user named, or with ``ECHO=1`` all of them."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Iterator, Sequence

import mxnet as mx
from mxnet.symbol import Symbol

from echo.runtime.cached_op import PlannedCachedOp
from echo.runtime.on_error import OnError
from echo.runtime.stand_ins import STAND_INS
from echo.runtime.unfused import StockCachedOp
from echo.runtime.unplanned import UNPLANNED
from echo.system.threads import PerThread, are_own

_HERE: PerThread[OnError | None] = PerThread(None)


@functools.wraps(StockCachedOp, assigned=(), updated=())
def cached_op(symbol: Symbol, flags: Sequence[tuple[str, Any]] = ()) -> Any:
    """Takes the place of ``mxnet.ndarray.CachedOp``: makes a planned one, or MXNet's own where none is asked for."""
    UNPLANNED.graph()
    is_named = _HERE.value is not None  # the program may read the plans of a block that it named
    on_error = _HERE.value or STAND_INS.policy
    if on_error is None or are_own():
        return StockCachedOp(symbol, flags)
    return on_error(lambda _: PlannedCachedOp(symbol, flags, on_error, is_named), lambda: StockCachedOp(symbol, flags))


@contextlib.contextmanager
def planned_by(on_error: OnError) -> Iterator[None]:
    """CachedOps that this thread makes meanwhile are planned."""
    STAND_INS.put(mx.nd, "CachedOp", lambda _: cached_op)
    with _HERE.set_to(on_error):
        yield
