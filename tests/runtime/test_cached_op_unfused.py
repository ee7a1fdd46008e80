"""The CachedOp of planned graphs computes what MXNet's own does."""

from __future__ import annotations

import mxnet as mx

from echo.runtime.cached_op import StockCachedOp, _unfused


def test_unfused_cached_op_computes_as_mxnets_own() -> None:
    x = mx.nd.array([1.0, -2.0])
    symbol = mx.sym.tanh(mx.sym.var("x") * 2)
    stock, unfused = (kind(symbol, [("static_alloc", True)]) for kind in (StockCachedOp, _unfused(StockCachedOp)))
    assert isinstance(unfused, StockCachedOp)
    assert (stock(x).asnumpy() == unfused(x).asnumpy()).all()
