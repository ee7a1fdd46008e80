"""The orders by which a climb compares choices: the limits of a problem, or bytes and seconds at a price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from echo.estimators.storage_planner import Choice, Evaluation
from echo.policies.problem import Problem


class Order(Protocol):
    """An order of choices: a climb prefers those of smaller rank."""

    def rank(self, value: Evaluation) -> tuple[float, ...]: ...

    def most_bytes(self, current: Evaluation) -> int | None:
        """Bytes above which no choice can rank before the current one, None where there is no such bound."""


@dataclass(frozen=True)
class Limits:
    """The order of choices under the user's limits."""

    problem: Problem

    def rank(self, value: Evaluation) -> tuple[float, ...]:
        return self.problem.rank(value)

    def keeps(self, value: Evaluation) -> bool:
        """Whether a choice is within all limits."""
        return self.problem.keeps(value)

    def most_bytes(self, current: Evaluation) -> int | None:
        if self.problem.max_bytes is not None:
            return max(self.problem.max_bytes, current.bytes)
        return current.bytes if self.rank(current)[0] == 0 else None


@dataclass(frozen=True)
class Price:
    """The order of choices when a second costs ``price`` bytes."""

    price: float

    def rank(self, value: Evaluation) -> tuple[float, ...]:
        return (value.bytes + self.price * value.seconds, value.seconds)

    def most_bytes(self, current: Evaluation) -> int | None:
        return int(self.rank(current)[0])


@dataclass(frozen=True)
class Worth:
    """A class of nodes: the bytes that recomputing it saves, and the seconds that it takes."""

    group: Choice
    bytes: int
    seconds: float
