"""The spaces from which MXNet's operators draw memory while they run (``src/resource.cc`` of MXNet)."""

from __future__ import annotations

import os

from echo.ir.training_graph import EXECUTOR, SHAPED

_VARIABLES = {"cpu": ("MXNET_CPU_TEMP_COPY", 4), "gpu": ("MXNET_GPU_TEMP_COPY", 1)}


def spaces(device: str, runner: str) -> int:
    """From how many spaces the operators of one graph draw.

    MXNet has some for each device and hands them out in turn: one to an executor, for all of its operators, and one to
    each pass of a CachedOp whose operators live on; otherwise every operator that a CachedOp runs gets the next.
    """
    variable, default = _VARIABLES[device]
    text = os.environ.get(variable, "")
    return _handed_out(int(text) if text.isdigit() and int(text) else default, runner)


def other_spaces(device: str, runner: str) -> dict[str, str]:
    """The variable and the number of spaces where that is not MXNet's default, as a setting of plans."""
    variable, default = _VARIABLES[device]
    copies = spaces(device, runner)
    return {} if copies == _handed_out(default, runner) else {variable: str(copies)}


def _handed_out(copies: int, runner: str) -> int:
    if runner == EXECUTOR:
        return 1
    return min(copies, 2) if runner == SHAPED else copies
