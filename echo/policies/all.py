"""Every candidate runs again, once, as under MXNet's own mirroring, but without its list of operators."""

from __future__ import annotations

from dataclasses import dataclass

from echo.ir.schedule import RecomputeSchedule
from echo.policies.problem import Problem


@dataclass(frozen=True)
class All:
    """Recomputes all candidates; ignores the limits."""

    name: str = "all"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        return problem.splits(problem.candidates)
