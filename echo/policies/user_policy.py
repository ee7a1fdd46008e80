"""A function of the user as a policy: its schedules are checked before they are used."""

from __future__ import annotations

import numbers
import operator
from dataclasses import dataclass
from typing import Any, Mapping

from echo.errors import OptionError
from echo.ir.schedule import RecomputeSchedule
from echo.plans.options import PolicyFunction, policy_name
from echo.policies.problem import Problem


@dataclass(frozen=True)
class UserPolicy:
    """A function of the user, whose schedules are checked."""

    function: PolicyFunction

    @property
    def name(self) -> str:
        return policy_name(self.function)

    def choose(self, problem: Problem) -> RecomputeSchedule:
        """Returns the function's schedule.

        Raises:
            OptionError: it is no schedule of this problem; the message names the node.
        """
        splits: Any = self.function(problem)
        if not isinstance(splits, Mapping):
            raise OptionError(f"policy {self.name}: expected a mapping from nodes to positions, got {splits!r}")
        return dict(self._checked(problem, number, positions) for number, positions in splits.items())

    def _checked(self, problem: Problem, number: Any, positions: Any) -> tuple[int, tuple[int, ...]]:
        if not isinstance(number, numbers.Integral) or number not in problem.candidates:
            raise OptionError(f"policy {self.name}: {number!r} is no candidate for recomputation, expected keys of "
                              "`problem.candidates`")  # fmt: skip
        name, nodes = problem.training.nodes[number].name, problem.training.nodes
        try:
            slots = tuple(map(operator.index, positions))
        except TypeError:
            raise OptionError(f"policy {self.name}: {name!r}: expected positions, got {positions!r}") from None
        ascend = all(one < other for one, other in zip(slots, slots[1:]))
        if not slots or not ascend or slots[0] < 0 or slots[-1] >= len(nodes) or nodes[slots[0]].forward:
            raise OptionError(f"policy {self.name}: {name!r}: expected positions of backward nodes, ascending, "
                              f"got {positions!r}")  # fmt: skip
        if len(slots) > 1 and not problem.may_split:
            raise OptionError(f"policy {self.name}: {name!r}: expected one position, since each node runs again at "
                              f"most once here, got {positions!r}")  # fmt: skip
        return int(number), slots
