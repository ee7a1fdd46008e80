"""Every candidate runs again, once: what MXNet's own mirroring does, without its list of operators."""

from __future__ import annotations

from dataclasses import dataclass

from echo.ir.schedule import Splits
from echo.policies.problem import Problem


@dataclass(frozen=True)
class All:
    """Recomputes all that may be; looks at no limit."""

    name: str = "all"

    def choose(self, problem: Problem) -> Splits:
        return problem.splits(problem.candidates)
