"""The match range of MXNet's memory planner, which it reads from the environment at each bind."""

from __future__ import annotations

import contextlib
import os
from typing import ContextManager

from echo.frontend.environment import changed_variable

MATCH_RANGE_VARIABLE = "NNVM_EXEC_MATCH_RANGE"


def match_range(value: int | None) -> ContextManager[None]:
    """Binds made while this is open use this match range of MXNet's memory planner (None: leave it as it is)."""
    return contextlib.nullcontext() if value is None else changed_variable(MATCH_RANGE_VARIABLE, str(value))


def default_match_range() -> int:
    """The match range that MXNet would use by itself."""
    text = os.environ.get(MATCH_RANGE_VARIABLE, "16")
    return int(text) if text.isdigit() else 16
