"""Symbols from files."""

from __future__ import annotations

import json
from pathlib import Path

import mxnet as mx

from echo.errors import GraphError
from echo.frontend.symbols import symbol_of
from echo.graph import Graph


def load_symbol(path: Path) -> mx.sym.Symbol:
    """A symbol saved as JSON.

    Raises:
        GraphError: the file is not one; the message names it.
        OSError: it cannot be read.
    """
    try:
        return symbol_of(Graph.from_json(json.loads(path.read_text(encoding="utf-8"))))
    except (ValueError, GraphError) as error:
        raise GraphError(f"{path} is not a symbol saved by MXNet: {error}") from error
    except mx.MXNetError as error:
        raise GraphError(f"{path}: MXNet cannot load it: {str(error).splitlines()[0]}") from error
