"""The bytes that fused operators draw as they run, beside all that is planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from echo.estimators.footprint import workspaces
from echo.passes.request import Request


@dataclass(frozen=True)
class Workspaces:
    """``largest`` is the largest workspace of a graph's operators; so much is drawn from each of some ``spaces``."""

    largest: int
    spaces: int

    @property
    def bytes(self) -> int:
        """The bytes that all spaces hold once the largest workspace was drawn from each."""
        return self.largest * self.spaces


@dataclass(frozen=True)
class CountWorkspaces:
    """Asks the kernels what each of the graph's fused operators draws; each space then holds the largest of these."""

    name: ClassVar[str] = "workspaces"
    needs: ClassVar[tuple[type, ...]] = (Request,)
    gives: ClassVar[type] = Workspaces

    def run(self, request: Request) -> Workspaces:
        frontend = request.frontend
        drawn = workspaces(frontend.differentiate(), frontend.device)
        return Workspaces(max(drawn.values(), default=0), frontend.spaces)
