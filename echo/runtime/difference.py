"""A difference that ``verify`` finds between the results of a plan's graph and of the user's own graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Array = Any  # of numpy


@dataclass(frozen=True)
class Difference:
    """An array that the plan's graph (``echo``) and the user's (``own``) compute differently.

    ``off`` is the largest difference, as a part of the largest element.
    """

    name: str
    off: float
    own: Array
    echo: Array

    def __str__(self) -> str:
        if self.own.shape != self.echo.shape or self.own.dtype != self.echo.dtype:
            return f"{self.name}: {self.own.dtype}{self.own.shape} became {self.echo.dtype}{self.echo.shape}"
        return f"{self.name} by {self.off:.1e} of its largest element"
