"""Symbols from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx

from echo.errors import GraphError
from echo.frontend.symbols import symbol_of
from echo.ir.graph import Graph
from echo.system.files import read_json

_NEXT = 2  # the major version whose symbols have operators that 1.9.1 does not know


def load_symbol(path: Path) -> mx.sym.Symbol:
    """A symbol saved as JSON.

    Raises:
        GraphError: the file is not one; the message names it.
        OSError: it cannot be read.
    """
    value: Any = None
    try:
        value = read_json(path, strict=False)  # control characters in texts MXNet writes as they are
        return symbol_of(Graph.from_json(value))
    except (ValueError, GraphError) as error:
        raise GraphError(f"{path} is not a symbol saved by MXNet: {error}") from error
    except mx.MXNetError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]  # the last one says what is wrong
        why = lines[-1] if lines else type(error).__name__
        raise GraphError(f"{path}{_newer(value)}: MXNet cannot load it: {why}") from error


def _newer(value: Any) -> str:
    """The version of MXNet that saved a symbol, in words, where that is 2.0 or later."""
    try:
        number = int(value["attrs"]["mxnet_version"][1])
    except (KeyError, IndexError, TypeError, ValueError):  # older ones do not say
        return ""
    major, rest = divmod(number, 10000)
    return f" was saved by MXNet {major}.{rest // 100}.{rest % 100}" if major >= _NEXT else ""
