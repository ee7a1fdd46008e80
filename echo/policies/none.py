"""The original graph: nothing runs again."""

from __future__ import annotations

from dataclasses import dataclass

from echo.ir.schedule import RecomputeSchedule
from echo.policies.problem import Problem


@dataclass(frozen=True)
class RecomputeNone:
    """Recomputes only the nodes that the user insists on; ignores the limits."""

    name: str = "none"

    def choose(self, problem: Problem) -> RecomputeSchedule:
        return {}
