"""The stock graph: nothing runs again."""

from __future__ import annotations

from dataclasses import dataclass

from echo.policies.problem import Problem
from echo.schedule import Splits


@dataclass(frozen=True)
class None_:
    """Stashes everything but what the user insists on; looks at no limit."""

    name: str = "none"

    def choose(self, problem: Problem) -> Splits:
        return {}
