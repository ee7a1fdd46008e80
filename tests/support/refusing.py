"""A CachedOp that MXNet refuses, as one of operators that it does not know."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx


def refusing_op(real: type[Any], is_refused: Callable[[str], bool], at: str) -> type[Any]:
    """A CachedOp as ``real``, which fails for symbols with such a JSON text: ``at`` "making", or when it is called."""

    class Refusing(real):  # type: ignore[misc, valid-type]
        def __init__(self, symbol: mx.sym.Symbol, flags: Any) -> None:
            self.refused = is_refused(symbol.tojson())
            if self.refused and at == "making":
                raise mx.MXNetError("Check failed:\nno such operator")
            super().__init__(symbol, flags)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self.refused:
                raise mx.MXNetError("Check failed:\nno such operator")
            return super().__call__(*args, **kwargs)

        def __del__(self) -> None:
            if hasattr(self, "handle"):
                super().__del__()

    return Refusing
