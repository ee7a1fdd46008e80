"""MXNet's line "Subgraph backend MKLDNN is activated.", which it writes at every bind: not at those of echo's own."""

from __future__ import annotations

import functools
import os

import mxnet as mx

from echo.frontend.environment import changed_variable
from echo.system.threads import own_binds

VARIABLE = "MXNET_SUBGRAPH_VERBOSE"


@functools.lru_cache(maxsize=None)
def silenced() -> bool:
    """Has ``bind`` leave the line out from now on; whether that was done.

    MXNet reads the variable once a process, at the first ``bind``, so this binds something tiny. What the user has set
    stays; a program that was the first to bind keeps the line, too. ``simple_bind`` reads the variable for itself.
    """
    if VARIABLE in os.environ:
        return False
    with changed_variable(VARIABLE, "0"), own_binds():
        mx.sym.Symbol.bind(mx.sym.var("data") + 0, mx.cpu(), [mx.nd.zeros((1,), mx.cpu())])
    return True
