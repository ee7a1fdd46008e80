"""An integer program as columns and rows, the form that solvers take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

CONSTANT = -1  # the column of terms that do not depend on the schedule


@dataclass
class Program:
    """Columns, and rows with their bounds: lower <= row <= upper."""

    cost: list[float] = field(default_factory=list)
    integral: list[bool] = field(default_factory=list)
    top: list[float] = field(default_factory=list)  # upper bounds of the columns, all of which begin at 0
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    rows: list[dict[int, float]] = field(default_factory=list)

    def column(self, cost: float = 0.0, integral: bool = False, top: float = 1.0) -> int:
        self.cost.append(cost)
        self.integral.append(integral)
        self.top.append(top)
        return len(self.cost) - 1

    def row(self, terms: Mapping[int, float], lower: float, upper: float) -> None:
        constant = terms.get(CONSTANT, 0.0)
        self.rows.append({column: factor for column, factor in terms.items() if column != CONSTANT and factor})
        self.lower.append(lower - constant)
        self.upper.append(upper - constant)
