"""The stock graph: nothing runs again."""

from __future__ import annotations

from dataclasses import dataclass

from echo.ir.schedule import Splits
from echo.policies.problem import Problem


@dataclass(frozen=True)
class None_:
    """Stashes everything but what the user insists on; looks at no limit."""

    name: str = "none"

    def choose(self, problem: Problem) -> Splits:
        return {}
