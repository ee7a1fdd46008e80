"""Rows for the tests of what is made of them."""

from __future__ import annotations

from typing import Any

from echo.instrument.windows import Row


def row(number: int = 0, **values: Any) -> Row:
    """The row of the window with this number: 10 steps of 32 samples in half a second."""
    given = {
        "step": 10 * number + 11, "time": (number + 1) / 2, "steps": 10, "samples": 320, "seconds": 0.5,
        "process": 200 * 10**6, "storage": 64 * 10**6, "device": None, "gpu_joules": None, "cpu_joules": None,
        "warmup": number == 0,
    }  # fmt: skip
    return Row(**{**given, **values})
