"""Symbols from files."""

from __future__ import annotations

from pathlib import Path

import mxnet as mx

from echo.errors import GraphError
from echo.frontend.symbols import symbol_of
from echo.ir.graph import Graph
from echo.system.reading import read_json


def load_symbol(path: Path) -> mx.sym.Symbol:
    """A symbol saved as JSON.

    Raises:
        GraphError: the file is not one; the message names it.
        OSError: it cannot be read.
    """
    try:
        # control characters in texts MXNet writes as they are
        return symbol_of(Graph.from_json(read_json(path, strict=False)))
    except (ValueError, GraphError) as error:
        raise GraphError(f"{path} is not a symbol saved by MXNet: {error}") from error
    except mx.MXNetError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]  # the last one says what is wrong
        raise GraphError(f"{path}: MXNet cannot load it: {lines[-1] if lines else type(error).__name__}") from error
